//! What a server says of where its second paths begin.

use crate::transport::Target;

/// Targets of a listener in the order in which a client whose first path ends at `local` tries them: those at the same
/// address first, since the client has reached that. An address that stands for all of a machine becomes that one.
pub fn in_order(targets: Vec<Target>, local: &str) -> Vec<Target> {
    let local = host(local);
    let reachable = |target: Target| match (host(target.address()), local) {
        (Some(("0.0.0.0" | "[::]", port)), Some((local, _))) => {
            Target::new(target.scheme(), format!("{local}:{port}"))
        }
        _ => target,
    };
    let mut targets: Vec<Target> = targets.into_iter().map(reachable).collect();
    let is_elsewhere = |target: &Target| {
        host(target.address()).map(|(host, _)| host) != local.map(|(host, _)| host)
    };
    targets.sort_by_key(is_elsewhere);
    targets.dedup();
    targets
}

/// Host and port.
fn host(address: &str) -> Option<(&str, &str)> {
    address.rsplit_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_at_the_address_of_the_first_path_come_first() {
        let targets = |list: &[&str]| -> Vec<Target> {
            list.iter().map(|target| target.parse().expect("well-formed")).collect()
        };
        for (listens, local, expected) in [
            (&["rdma://0.0.0.0:5"][..], "10.0.0.1:7000", &["rdma://10.0.0.1:5"][..]),
            (&["rdma://[::]:5"], "[fd00::1]:7000", &["rdma://[fd00::1]:5"]),
            (
                &["rdma://10.1.0.1:5", "rdma://10.0.0.1:5"],
                "10.0.0.1:7000",
                &["rdma://10.0.0.1:5", "rdma://10.1.0.1:5"],
            ),
            (&["rdma://10.1.0.1:5"], "10.0.0.1:7000", &["rdma://10.1.0.1:5"]),
            (&["mem://b"], "a", &["mem://b"]),
            (&["fabric://net/server:5"], "127.0.0.1:9", &["fabric://net/server:5"]),
        ] {
            assert_eq!(
                in_order(targets(listens), local),
                targets(expected),
                "{listens:?} at {local}"
            );
        }
    }
}
