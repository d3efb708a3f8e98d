use super::*;
use proptest::prelude::*;

fn text(value: &str) -> MetadataValue<Ascii> {
    value.parse().expect("printable")
}

#[test]
fn duplicates_keep_their_order_and_insert_replaces_them_all() {
    let mut map = MetadataMap::new();
    for value in ["1", "2", "3"] {
        map.append("a", text(value)).expect("a name");
        map.append("b", text(value)).expect("a name");
    }
    let all = |map: &MetadataMap, key: &str| -> Vec<String> {
        map.get_all(key).map(|value| value.as_str().to_owned()).collect()
    };
    assert_eq!(all(&map, "a"), ["1", "2", "3"]);
    assert_eq!(map.insert("a", text("4")).expect("a name"), Some(text("1")));
    assert_eq!(all(&map, "a"), ["4"]);
    assert_eq!(all(&map, "b"), ["1", "2", "3"]);
    assert_eq!(map.remove("b"), Some(text("1")));
    assert_eq!(map.len(), 1);
}

#[test]
fn names_are_found_in_whatever_case_they_are_asked_for() {
    let mut map = MetadataMap::new();
    map.insert("authorization", text("x")).expect("a name");
    map.insert_bin("trace-bin", vec![0, 255].into()).expect("a name");
    assert_eq!(map.get("Authorization").expect("there"), "x");
    assert_eq!(*map.get_bin("Trace-Bin").expect("there"), [0, 255][..]);
    assert!(map.get("trace-bin").is_none() && map.get_bin("authorization").is_none());
}

#[test]
fn what_cannot_be_sent_is_refused_by_its_name() {
    let mut map = MetadataMap::new();
    let long = "a".repeat(MAX_KEY + 1);
    let cases = [
        ("", "has no characters"),
        ("Upper", "\"Upper\" has the byte 0x55"),
        (":path", "\":path\" has the byte 0x3a"),
        ("two words", "has the byte 0x20"),
        ("grpc-timeout", "\"grpc-timeout\" is reserved"),
        ("verbwire-trace", "\"verbwire-trace\" is reserved"),
        ("data-bin", "use insert_bin"),
        (&long, "has 257 bytes, at most 256"),
    ];
    for (key, words) in cases {
        let error = map.insert(key, text("x")).expect_err(key);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(map.append(key, text("x")), Err(error));
    }
    let error = map.insert_bin("data", Vec::new().into()).expect_err("no -bin");
    assert!(error.to_string().contains("does not end in \"-bin\""), "{error}");
    for value in ["tab\t", "größer", "\u{7f}", "line\n"] {
        let error = MetadataValue::<Ascii>::try_from(value).expect_err(value);
        assert!(error.to_string().contains("under a key that ends in \"-bin\""), "{error}");
    }
    assert!(map.is_empty());
}

proptest! {
    #[test]
    fn no_name_or_value_can_panic(key in any::<Vec<u8>>(), value in any::<Vec<u8>>()) {
        let _ = MetadataKey::<Ascii>::from_bytes(key.clone());
        let _ = MetadataKey::<Binary>::from_bytes(key);
        let _ = MetadataValue::<Ascii>::checked(value.into());
    }
}
