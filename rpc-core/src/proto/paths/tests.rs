use super::*;

const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
const DELAYS: (Duration, Duration) = (FIRST_DELAY, LONGEST_DELAY);

fn rule(policy: PathPolicy) -> (PathRule, Instant) {
    let now = Instant::now();
    (PathRule::new(now, policy, Ok(()), DELAYS, Random::from_seed(3)), now)
}

fn due(rule: &PathRule) -> Instant {
    match rule.next() {
        Next::AskAt(at) => at,
        other => unreachable!("an attempt is due: {other:?}"),
    }
}

fn connected(rule: &mut PathRule, now: Instant) {
    rule.handle_ask();
    rule.handle_offer();
    rule.handle_connected(now);
    assert_eq!(rule.next(), Next::Up);
}

#[test]
fn policies_decide_before_anybody_is_asked() {
    use PathPolicy::{Auto, RequireEncryption, RequireRdma, TcpOnly};
    for (policy, available, never) in [
        (Auto, Ok(()), None),
        (RequireRdma, Ok(()), None),
        (Auto, Err("this build has no RDMA"), Some("no RDMA")),
        (RequireRdma, Err("this build has no RDMA"), Some("no RDMA")),
        (TcpOnly, Ok(()), Some("TcpOnly")),
        (TcpOnly, Err("this build has no RDMA"), Some("TcpOnly")),
        (RequireEncryption, Ok(()), Some("not encrypted")),
    ] {
        let now = Instant::now();
        let mut rule = PathRule::new(now, policy, available, DELAYS, Random::from_seed(1));
        let Some(words) = never else {
            assert_eq!(rule.next(), Next::AskAt(now), "{policy:?}");
            continue;
        };
        assert_eq!(rule.next(), Next::Never, "{policy:?}");
        assert!(rule.why_not(now).contains(words), "{}", rule.why_not(now));
        rule.handle_ask();
        rule.handle_offer();
        rule.handle_connected(now);
        rule.handle_lost(now, "lost".into());
        assert_eq!((rule.next(), rule.switches()), (Next::Never, 0));
    }
}

#[test]
fn encryption_is_asked_of_the_first_path_too() {
    let path = |transport| Path { transport, local: "a:1".into(), peer: "b:2".into() };
    for (policy, transport, is_ok) in [
        (PathPolicy::Auto, "tcp", true),
        (PathPolicy::RequireRdma, "tcp", true),
        (PathPolicy::RequireEncryption, "tls", true),
        (PathPolicy::RequireEncryption, "tcp", false),
        (PathPolicy::RequireEncryption, "mem", false),
    ] {
        let checked = policy.check_first(&path(transport));
        assert_eq!(checked.is_ok(), is_ok, "{policy:?} over {transport}");
    }
}

#[test]
fn failures_are_further_and_further_apart_and_say_when_the_next_try_is() {
    let (mut rule, mut now) = rule(PathPolicy::Auto);
    let mut delays = Vec::new();
    for number in 1..20 {
        rule.handle_ask();
        assert_eq!(rule.next(), Next::Busy);
        rule.handle_offer();
        assert_eq!(rule.next(), Next::Busy);
        rule.handle_failed(now, "nobody answers".into());
        let words = rule.why_not(now);
        let count = format!("failed so far in a row: {number}");
        assert!(words.starts_with("nobody answers; ") && words.ends_with(&count), "{words}");
        delays.push(due(&rule) - now);
        now = due(&rule);
    }
    assert!(delays[0] <= FIRST_DELAY * 6 / 5, "{delays:?}");
    assert!(delays[18] >= LONGEST_DELAY * 4 / 5, "{delays:?}");
}

#[test]
fn a_refusal_that_lasts_is_followed_by_the_longest_delay_and_a_server_may_ask_for_more() {
    let (mut rule, now) = rule(PathPolicy::Auto);
    rule.handle_ask();
    rule.handle_refused(now, Outlook::Lasting, "no RDMA in the server's build".into());
    assert!(due(&rule) - now >= LONGEST_DELAY * 4 / 5);
    let (mut rule, now) = self::rule(PathPolicy::Auto);
    rule.handle_ask();
    rule.handle_refused(now, Outlook::Soon(Some(LONGEST_DELAY * 3)), "busy".into());
    assert_eq!(due(&rule) - now, LONGEST_DELAY * 3);
    rule.handle_ask();
    rule.handle_refused(now, Outlook::Soon(Some(Duration::MAX)), "busy".into());
    assert!(due(&rule) > now + LONGEST_DELAY);
}

#[test]
fn a_path_that_breaks_again_and_again_is_tried_less_and_less() {
    let (mut rule, mut now) = rule(PathPolicy::Auto);
    for _ in 0..20 {
        connected(&mut rule, now);
        now += LASTING - Duration::from_millis(1);
        rule.handle_lost(now, "the device is gone".into());
        assert!(due(&rule) > now, "not at once");
        let late = due(&rule);
        assert!(late - now <= LONGEST_DELAY * 6 / 5);
        now = late;
    }
    assert_eq!(rule.switches(), 20);
    connected(&mut rule, now);
    let ended = now + LASTING;
    rule.handle_lost(ended, "the device is gone".into());
    assert!(due(&rule) - ended <= FIRST_DELAY * 6 / 5, "it had lasted");
}

#[test]
fn no_order_of_events_makes_two_attempts_or_leaves_the_reason_out() {
    for seed in 0..500 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut rule, mut now) = rule(PathPolicy::Auto);
        let (mut attempts, mut ups) = (0, 0);
        for _ in 0..200 {
            let (before, was_up) = (rule.next(), rule.switches());
            match random.u8(0..7) {
                0 => rule.handle_ask(),
                1 => rule.handle_offer(),
                2 => rule.handle_connected(now),
                3 => rule.handle_failed(now, "failed".into()),
                4 => rule.handle_lost(now, "lost".into()),
                5 => rule.handle_refused(now, Outlook::Soon(None), "refused".into()),
                _ => now += Duration::from_millis(random.u64(0..30_000)),
            }
            let after = rule.next();
            if after == Next::Busy && before != Next::Busy {
                assert!(matches!(before, Next::AskAt(_)), "seed {seed}: {before:?} to an attempt");
                attempts += 1;
            }
            if let (Next::Busy | Next::Up, Next::AskAt(at)) = (before, after) {
                assert!(at > now, "seed {seed}: tried again without any delay");
            }
            ups += rule.switches() - was_up;
            assert!(!rule.why_not(now).is_empty(), "seed {seed}");
            assert_ne!(after, Next::Never, "seed {seed}");
        }
        assert!(ups <= attempts, "seed {seed}: {ups} paths of {attempts} attempts");
    }
}
