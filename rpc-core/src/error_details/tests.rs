use super::*;
use proptest::prelude::*;
use std::time::Duration as Time;

#[test]
fn the_bytes_are_those_of_google_rpc() {
    let details = ErrorDetails::new().with(RetryInfo::after(Time::from_secs(5)));
    let status = Status::unavailable("later").with_error_details(&details);
    let expected = [
        &b"\x08\x0e"[..], // 1 code: 14
        b"\x12\x05later", // 2 message
        b"\x1a\x30",      // 3 details: an Any of 48 bytes
        b"\x0a\x28type.googleapis.com/google.rpc.RetryInfo",
        b"\x12\x04\x0a\x02\x08\x05", // 2 value: 1 retry_delay: 1 seconds: 5
    ];
    assert_eq!(
        status.details().escape_ascii().to_string(),
        expected.concat().escape_ascii().to_string()
    );
}

#[test]
fn every_kind_is_read_back_in_order() {
    let own = Any::pack("shop.Reason", &BadRequest::default());
    let details = ErrorDetails::new()
        .with(RetryInfo::after(Time::from_millis(1500)))
        .with(DebugInfo { stack_entries: vec!["here".into()], detail: "d".into() })
        .with(QuotaFailure::of("tenant a", "calls"))
        .with(ErrorInfo::of("FULL", "storage.example.com"))
        .with(own.clone())
        .with(BadRequest::of("name", "is empty"))
        .with(BadRequest::of("size", "is 0"))
        .with(ResourceInfo::of("volume", "v7", "is read-only"))
        .with(Help { links: vec![Link::default()] })
        .with(LocalizedMessage { locale: "de-CH".into(), message: "voll".into() });
    let read = Status::aborted("").with_error_details(&details).error_details();
    let read = read.expect("the standard form");
    assert_eq!(read, details);
    assert_eq!(read.retry_info().and_then(RetryInfo::delay), Some(Time::from_millis(1500)));
    assert_eq!(read.bad_request().expect("there").field_violations[0].field, "name");
    assert_eq!(read.iter().nth(4), Some(&ErrorDetail::Other(own)));
    let volume = read.resource_info().expect("there");
    assert_eq!((&*volume.resource_name, &*volume.description), ("v7", "is read-only"));
    let quota = &read.quota_failure().expect("there").violations[0];
    assert_eq!((&*quota.subject, &*quota.description), ("tenant a", "calls"));
    assert!(read.precondition_failure().is_none());
}

#[test]
fn details_of_another_form_are_an_error_and_none_are_none() {
    assert!(Status::aborted("").error_details().expect("none").is_empty());
    assert!(Status::aborted("").with_details(&b"\xff"[..]).error_details().is_err());
    let broken = Any { type_url: "x/google.rpc.Help".into(), value: (&b"\xff"[..]).into() };
    let status = Status::aborted("").with_error_details(&ErrorDetails::new().with(broken));
    assert!(status.error_details().is_err());
}

#[test]
fn a_delay_that_is_no_time_is_none() {
    for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MAX, i32::MAX)] {
        let retry_delay = Some(Duration { seconds, nanos });
        assert_eq!(RetryInfo { retry_delay }.delay(), None);
    }
}

proptest! {
    #[test]
    fn no_details_can_panic_the_reader(bytes in any::<Vec<u8>>()) {
        let status = Status::aborted("").with_details(bytes);
        let _ = status.error_details();
    }
}
