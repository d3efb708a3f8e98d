//! Paths to servers, over real sockets of this process.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::bytes::Bytes;
use verbwire::open::{Open, ReplyForm, StreamHandlerFuture, StreamInput, StreamOutput};
use verbwire::{Body, Code, ErrorKind, Request, Response, Server, Status};

use crate::doctor::finding::Level;
use crate::doctor::rules::{self, Build};
use crate::doctor::tries::{self, Demand, StepName, Try};
#[cfg(feature = "tls")]
use crate::doctor::trust::Files;
use crate::doctor::trust::Trust;

/// Long enough for each step that succeeds, on a busy machine.
const LIMIT: Duration = Duration::from_secs(2);

async fn tried(target: &str) -> Try {
    let build = Build { has_rdma: false };
    let mut paths = tries::plan(target, build, false, &Trust::default()).expect("a target");
    tries::run_all(&mut paths, &Trust::default(), LIMIT).await;
    paths.swap_remove(0)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn names(path: &Try) -> Vec<StepName> {
    path.steps.iter().map(|step| step.name).collect()
}

/// Answers every call with the same reply.
struct Answers(Result<&'static [u8], Code>);

impl Open for Answers {
    fn call(
        self: Arc<Self>,
        path: Arc<str>,
        _: ReplyForm,
        _: Request<StreamInput>,
    ) -> StreamHandlerFuture {
        assert_eq!(&*path, "/grpc.health.v1.Health/Check");
        Box::pin(async move {
            let reply = self.0.map_err(|code| Status::new(code, "no"))?;
            Ok(Response::new(StreamOutput::Whole(Body::from(Bytes::from_static(reply)))))
        })
    }
}

#[test]
fn a_server_is_reached_in_four_steps_and_asked_for_its_health() {
    runtime().block_on(async {
        for (answer, level, words) in [
            (Ok(&[0x08, 1][..]), Level::Ok, "health: serving"),
            (Ok(&[0x08, 2]), Level::Warning, "health: not serving"),
            (Err(Code::Unimplemented), Level::Ok, "health: answered Unimplemented"),
            (Err(Code::Unauthenticated), Level::Ok, "health: answered Unauthenticated"),
            (Err(Code::ResourceExhausted), Level::Problem, "a call ended with ResourceExhausted"),
        ] {
            let server = Server::builder().fallback(Answers(answer));
            let bound = server.bind(&["tcp://127.0.0.1:0"]).await.expect("bound");
            let target = bound.local_targets()[0].to_string();
            tokio::spawn(bound.serve());
            let path = tried(&target).await;
            let steps = [StepName::Name, StepName::Tcp, StepName::Hello, StepName::Call];
            assert_eq!(names(&path), steps, "{path:?}");
            let finding = &rules::judge_tries(&[path])[0];
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.what.contains(words), "{finding:?}");
        }
    });
}

/// Serves at `bound_at`, and tries the address that results with `scheme`, as on a machine that could move to RDMA.
async fn tried_movable(bound_at: &str, scheme: &str) -> Try {
    let server = Server::builder().fallback(Answers(Ok(&[0x08, 1])));
    let bound = server.bind(&[bound_at]).await.expect("bound");
    let target = format!("{scheme}://{}", bound.local_targets()[0].address());
    tokio::spawn(bound.serve());
    let path = Try { may_move: true, ..Try::new(target, Demand::Named) };
    let mut paths = [path, Try::new("tcp://127.0.0.1:1", Demand::Alternative)];
    tries::run_all(&mut paths, &Trust::default(), LIMIT).await;
    let [path, other] = paths;
    let has_moved = names(&path).contains(&StepName::Move);
    assert_eq!(other.skipped.is_some(), has_moved, "{other:?}");
    path
}

#[test]
fn a_server_without_rdma_leaves_auto_on_tcp_and_that_is_a_warning_with_the_reason() {
    let path = runtime().block_on(tried_movable("tcp://127.0.0.1:0", "auto"));
    assert!(path.failure().is_none() && !names(&path).contains(&StepName::Move), "{path:?}");
    let finding = &rules::judge_tries(&[path])[0];
    assert_eq!(finding.level, Level::Warning);
    assert!(finding.what.contains("calls stay on TCP: "), "{}", finding.what);
}

#[cfg(feature = "fabric")]
#[test]
fn a_move_to_rdma_is_a_step_of_its_own_and_ends_the_search() {
    let name = "autofabric://doctor-moves";
    let path = runtime().block_on(tried_movable(name, "autofabric"));
    assert!(names(&path).contains(&StepName::Move), "{path:?}");
    let finding = &rules::judge_tries(&[path])[0];
    assert_eq!(finding.level, Level::Ok, "{finding:?}");
    assert!(
        finding.what.contains("move to RDMA") && finding.what.contains("fabric"),
        "{finding:?}"
    );
}

#[test]
fn each_way_to_fail_names_its_step_and_ends_in_time() {
    runtime().block_on(async {
        let listener = || TcpListener::bind("127.0.0.1:0").expect("a listener");
        let silent = listener();
        let gone = listener().local_addr().expect("bound");
        let mute = silent.local_addr().expect("bound");
        for (target, step, kind) in [
            ("tcp://no.such.host.invalid:1".to_owned(), StepName::Name, None),
            (format!("tcp://{gone}"), StepName::Tcp, Some(ErrorKind::Unreachable)),
            (format!("tcp://{mute}"), StepName::Hello, Some(ErrorKind::TimedOut)),
        ] {
            let started = Instant::now();
            let path = tried(&target).await;
            let (failed, failure) = path.failure().expect("it fails");
            assert_eq!(failed.name, step, "{target}: {failure:?}");
            if kind.is_some() {
                assert_eq!(failure.kind, kind, "{target}: {failure:?}");
            }
            assert!(started.elapsed() < LIMIT * 2 + Duration::from_secs(3), "{target}");
        }
    });
}

#[test]
fn targets_ask_for_their_paths() {
    let targets = |target: &str, has_rdma, has_device| -> Vec<(String, bool)> {
        let paths = tries::plan(target, Build { has_rdma }, has_device, &Trust::default())
            .expect("a target");
        paths.into_iter().map(|path| (path.target, path.skipped.is_none())).collect()
    };
    let [tcp, auto, rdma] = ["tcp", "auto", "rdma"].map(|scheme| format!("{scheme}://a:1"));
    for target in ["a:1", "auto://a:1"] {
        for (has_rdma, has_device) in [(true, true), (true, false), (false, true)] {
            let rdma = (rdma.clone(), has_rdma && has_device);
            let expected = [(tcp.clone(), true), (auto.clone(), true), rdma];
            assert_eq!(targets(target, has_rdma, has_device), expected);
        }
    }
    // Asked for by name it is tried, and the library says what is missing.
    assert_eq!(targets("rdma://a:1", false, false), [(rdma, true)]);
}

#[test]
fn what_is_no_target_is_refused_with_an_example() {
    for target in ["", "a", "a:b", "a:70000", "TCP://a:1", "tcp://"] {
        let planned = tries::plan(target, Build { has_rdma: true }, true, &Trust::default());
        let why = planned.expect_err(target);
        assert!(why.contains("tcp://10.0.0.1:7000"), "{why}");
    }
}

#[test]
fn a_scheme_that_this_build_lacks_fails_in_the_librarys_words() {
    let path = runtime().block_on(tried("pigeon://coop"));
    let (step, failure) = path.failure().expect("it fails");
    assert_eq!((step.name, failure.kind), (StepName::Hello, Some(ErrorKind::Unsupported)));
    assert!(failure.what.contains("pigeon:// is no transport"), "{}", failure.what);
    assert_eq!(rules::judge_tries(&[path])[0].level, Level::Problem);
}

#[cfg(feature = "tls")]
#[test]
fn a_server_with_tls_is_reached_by_who_trusts_its_authority() {
    use verbwire::tls::ServerTls;
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("rcgen");
    let (chain, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    let folder = std::env::temp_dir().join(format!("verbwire-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("ca.pem");
    std::fs::write(&file, &chain).expect("a file");
    let authority = Some(file.to_str().expect("UTF-8").to_owned());
    let files = Files { authority, ..Files::default() };
    let trust = Trust::read(&files).expect("it is one");
    let wrong = [
        Files { key: Some("key.pem".to_owned()), ..Files::default() },
        Files { authority: Some("/nonexistent/ca.pem".to_owned()), ..Files::default() },
    ];
    for wrong in wrong {
        Trust::read(&wrong).expect_err("of no use");
    }
    let paths = runtime().block_on(async {
        let tls = ServerTls::from_pem(&chain, key).expect("an identity");
        let server = Server::builder().tls(&tls).fallback(Answers(Ok(&[0x08, 1])));
        let bound = server.bind(&["auto://127.0.0.1:0"]).await.expect("bound");
        let address = bound.local_targets()[0].address().replace("127.0.0.1", "localhost");
        tokio::spawn(bound.serve());
        let build = Build { has_rdma: false };
        let mut paths = tries::plan(&address, build, false, &trust).expect("a target");
        tries::run_all(&mut paths, &trust, LIMIT).await;
        paths
    });
    std::fs::remove_dir_all(&folder).expect("the test's own");
    let targets: Vec<_> = paths.iter().map(|path| path.target.split(':').next()).collect();
    assert_eq!(targets, [Some("tls"), Some("auto"), Some("rdma")]);
    for path in &paths[..2] {
        assert!(path.failure().is_none(), "{path:?}");
        assert!(path.route.as_ref().is_some_and(|route| route.contains("tls")), "{path:?}");
    }
}
