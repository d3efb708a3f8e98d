//! Two hosts on a wire that loses: run with the lab's `pair`, on both.

use std::process::Command;
use std::time::Instant;

use super::endings::cannot;
use super::*;

/// Two machines cannot tell each other a port that the system chose.
const PORT: u16 = 7471;

fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "'{program} {words}' failed: {text}");
    text
}

/// Waits for the other host.
fn meet(name: &str) {
    run("lab-barrier", name);
}

/// Accepts a connection and waits until it is over; returns how long that took after all was ready.
async fn hear_of_the_end() -> Duration {
    let address = format!("{}:{PORT}", lab("LAB_ADDRESS"));
    let mut listener = cm().listen(&address).await.expect("listens");
    meet("listening");
    let request = poll_fn(|cx| listener.poll_request(cx)).await.expect("a request");
    let side = Side::open(&request.nic());
    let qp = Arc::clone(&side.qp);
    let mut connected = request.accept(qp, Vec::new()).await.expect("accepts");
    meet("connected");
    let begun = Instant::now();
    let over = poll_fn(|cx| connected.events.poll_disconnected(cx));
    timeout(Duration::from_secs(20), over).await.expect("hears of the end within 20 s");
    begun.elapsed()
}

/// Connects, and disconnects while the wire loses everything.
async fn end_unheard() {
    meet("listening");
    let resolved = cm().resolve(&format!("{}:{PORT}", lab("LAB_PEER"))).await.expect("resolves");
    let side = Side::open(&resolved.nic());
    let connected = resolved.connect(Arc::clone(&side.qp), b"hello".to_vec()).await;
    let mut connected = connected.expect("connects");
    let wire = lab("LAB_NETDEV");
    run("tc", &format!("qdisc add dev {wire} root netem loss 100%"));
    meet("connected");
    connected.events.disconnect();
    side.qp.fail();
    drop((connected, side));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let dropped = run("tc", &format!("-s qdisc show dev {wire}"));
    assert!(!dropped.contains("(dropped 0,"), "nothing was lost: {dropped}");
    run("tc", &format!("qdisc del dev {wire} root"));
}

#[tokio::test]
#[ignore = "needs an RDMA device: run it in the device lab"]
async fn a_disconnect_that_is_lost_is_said_again() {
    match (lab("LAB_HOSTS").as_str(), lab("LAB_HOST").as_str()) {
        ("2", "1") => {
            let took = hear_of_the_end().await;
            assert!(took >= Duration::from_secs(1), "the first was not lost: {took:?}");
        }
        ("2", _) => end_unheard().await,
        _ => {
            return cannot(
                "wire::a_disconnect_that_is_lost_is_said_again",
                "one host loses nothing",
            );
        }
    }
    meet("heard");
}
