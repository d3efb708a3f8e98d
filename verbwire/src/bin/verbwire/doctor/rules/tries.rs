//! What the tries of the paths to a target show.

use std::time::Duration;

use verbwire::ErrorKind;

use crate::doctor::finding::{Finding, Layer, Level};
use crate::doctor::tries::{Demand, Doubt, Failure, Step, StepName, Try};

/// One finding for each path. A path that was asked for by name must work; of the others one is enough.
pub(crate) fn judge(tries: &[Try]) -> Vec<Finding> {
    let some_works = tries.iter().any(|path| path.skipped.is_none() && path.failure().is_none());
    tries.iter().map(|path| judge_one(path, some_works)).collect()
}

fn judge_one(path: &Try, some_works: bool) -> Finding {
    let target = &path.target;
    if let Some(why) = &path.skipped {
        let what = format!("{target} was not tried: {why}");
        return Finding::new(Layer::Protocol, Level::Note, "not-tried", what);
    }
    let Some((step, failure)) = path.failure() else {
        let steps: Vec<String> = path.steps.iter().map(in_words).collect();
        let route = path.route.as_ref().map(|route| format!(" ({route})")).unwrap_or_default();
        let what = format!("{target} works{route}: {}", steps.join(", "));
        let new = |level, what| Finding::new(Layer::Protocol, level, "path", what);
        return match &path.doubt {
            None => new(Level::Ok, what),
            Some(Doubt::NotServing) => new(Level::Warning, what)
                .advise("the server answers and says that it does not serve: ask it why"),
            Some(Doubt::StaysOnTcp(why)) => {
                new(Level::Warning, format!("{what}; calls stay on TCP: {why}")).advise(
                    "if it should be on RDMA, run the doctor on the server's machine as well, and look at the findings \
                     of rdma:// here",
                )
            }
        };
    };
    let level = match path.demand {
        Demand::Alternative if some_works => Level::Warning,
        _ => Level::Problem,
    };
    let what =
        format!("{target} failed at {} after {}: {}", step.name, time(step.took), failure.what);
    Finding::new(layer(failure), level, "path", what).advise(action(target, step.name, failure))
}

fn in_words(step: &Step) -> String {
    let detail = match &step.result {
        Ok(detail) if !detail.is_empty() => format!(" ({detail})"),
        _ => String::new(),
    };
    format!("{} {}{detail}", step.name, time(step.took))
}

/// With three digits: `840 us`, `1.25 ms`, `5.00 s`.
pub(crate) fn time(took: Duration) -> String {
    match took.as_micros() {
        us @ 0..1000 => format!("{us} us"),
        us @ 1000..1_000_000 => format!("{}.{:02} ms", us / 1000, us % 1000 / 10),
        us => format!("{}.{:02} s", us / 1_000_000, us % 1_000_000 / 10_000),
    }
}

fn layer(failure: &Failure) -> Layer {
    match failure.kind {
        Some(ErrorKind::LocalResource) => Layer::Driver,
        _ => Layer::Protocol,
    }
}

fn action(target: &str, step: StepName, failure: &Failure) -> String {
    let (scheme, address) = target.split_once("://").unwrap_or(("", target));
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let port = address.rsplit_once(':').map_or("", |(_, port)| port);
    let is_rdma = scheme == "rdma";
    match (step, failure.kind) {
        (StepName::Name, _) => format!("check the name: 'getent hosts {host}'"),
        (StepName::Tcp, Some(ErrorKind::Unreachable)) => {
            format!(
                "start the server there, or correct the port; on that host: 'ss -ltn sport = :{port}'"
            )
        }
        (StepName::Tcp, _) => {
            format!(
                "something drops the packets: let TCP port {port} in at {host}, and look at 'ip route get {host}'"
            )
        }
        (StepName::Hello, Some(ErrorKind::LocalResource)) => {
            "see the findings of the driver above, then try again".to_owned()
        }
        (StepName::Hello, Some(ErrorKind::Unsupported)) => {
            "use another scheme, or a build that has this one".to_owned()
        }
        (StepName::Hello, Some(ErrorKind::Unreachable)) if is_rdma => {
            format!(
                "does the server bind rdma:// at {address}, the address of its RDMA interface? Then 'rping -s' there \
                 and 'rping -c -a {host}' here try the path without verbwire"
            )
        }
        (StepName::Hello, Some(ErrorKind::TimedOut)) if is_rdma => {
            format!(
                "let UDP port 4791 (RoCE) or TCP port {port} (iWARP) in at {host}, and look at the port states and \
                 the MTU at both ends; 'rping -s' there and 'rping -c -a {host}' here try the path without verbwire"
            )
        }
        (StepName::Hello, Some(ErrorKind::Incompatible)) => {
            "bring client and server to versions that have a protocol in common".to_owned()
        }
        (StepName::Hello, _) => {
            format!(
                "is it a verbwire server that listens at {address} with {scheme}://? Its log says what came"
            )
        }
        (StepName::Call | StepName::Move, _) => {
            "the connection works and calls do not: see the server's log and its load".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(name: StepName, kind: ErrorKind) -> Step {
        let failure = Failure { what: "no".to_owned(), kind: Some(kind) };
        Step { name, took: Duration::from_millis(2), result: Err(failure) }
    }

    fn passed(name: StepName) -> Step {
        Step { name, took: Duration::from_micros(840), result: Ok("why".to_owned()) }
    }

    fn path(target: &str, demand: Demand, steps: Vec<Step>) -> Try {
        Try { steps, ..Try::new(target, demand) }
    }

    #[test]
    fn a_path_that_works_says_how_long_each_step_took() {
        let steps = vec![passed(StepName::Tcp), passed(StepName::Hello), passed(StepName::Call)];
        let findings = judge(&[path("tcp://a:1", Demand::Named, steps)]);
        assert_eq!(findings[0].level, Level::Ok);
        assert_eq!(findings[0].what.matches("840 us (why)").count(), 3, "{}", findings[0].what);
    }

    #[test]
    fn a_path_that_works_and_stays_on_tcp_where_it_need_not_is_a_warning() {
        let doubt = Some(Doubt::StaysOnTcp("the server has no RDMA".to_owned()));
        let steps = vec![passed(StepName::Hello)];
        let findings = judge(&[Try { doubt, ..path("auto://a:1", Demand::Named, steps) }]);
        assert_eq!(findings[0].level, Level::Warning);
        let words = "calls stay on TCP: the server has no RDMA";
        assert!(findings[0].what.ends_with(words), "{}", findings[0].what);
    }

    #[test]
    fn a_path_that_fails_is_a_problem_unless_another_works_and_nobody_asked_for_this_one() {
        let bad = vec![failed(StepName::Hello, ErrorKind::Unreachable)];
        let good = vec![passed(StepName::Hello)];
        for (demand, other, level) in [
            (Demand::Alternative, &good, Level::Warning),
            (Demand::Alternative, &bad, Level::Problem),
            (Demand::Named, &good, Level::Problem),
        ] {
            let tries = [
                path("tcp://a:1", Demand::Alternative, other.clone()),
                path("rdma://a:1", demand, bad.clone()),
            ];
            assert_eq!(judge(&tries)[1].level, level, "{demand:?}");
        }
    }

    #[test]
    fn a_path_that_was_skipped_does_not_count_as_one_that_works() {
        let skipped =
            Try { skipped: Some("why".to_owned()), ..Try::new("rdma://a:1", Demand::Alternative) };
        let bad = vec![failed(StepName::Tcp, ErrorKind::TimedOut)];
        let findings = judge(&[path("tcp://a:1", Demand::Alternative, bad), skipped]);
        assert_eq!([findings[0].level, findings[1].level], [Level::Problem, Level::Note]);
    }

    #[test]
    fn what_to_do_names_the_step_and_the_port() {
        for (target, step, kind, part) in [
            ("tcp://a:7", StepName::Name, ErrorKind::Unreachable, "getent hosts a"),
            ("tcp://a:7", StepName::Tcp, ErrorKind::Unreachable, "sport = :7"),
            ("tcp://a:7", StepName::Tcp, ErrorKind::TimedOut, "let TCP port 7 in"),
            ("tcp://a:7", StepName::Hello, ErrorKind::PeerFault, "is it a verbwire server"),
            ("rdma://a:7", StepName::Hello, ErrorKind::Unreachable, "rping -c -a a"),
            ("rdma://a:7", StepName::Hello, ErrorKind::TimedOut, "UDP port 4791"),
            ("rdma://a:7", StepName::Hello, ErrorKind::LocalResource, "driver"),
        ] {
            let findings = judge(&[path(target, Demand::Named, vec![failed(step, kind)])]);
            let action = findings[0].action.as_deref().expect("something to do");
            assert!(action.contains(part), "{target} {step}: {action}");
        }
    }
}
