use super::*;

struct Made {
    chain: String,
    key: String,
}

fn made() -> Made {
    let issued = rcgen::generate_simple_self_signed(["a.test".to_owned()]).expect("rcgen");
    Made { chain: issued.cert.pem(), key: issued.signing_key.serialize_pem() }
}

fn refused<T: fmt::Debug>(made: Result<T, Error>) -> String {
    let error = made.expect_err("unusable");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    error.to_string()
}

#[test]
fn what_is_no_certificate_or_key_is_refused_in_words() {
    let (one, other) = (made(), made());
    let words = refused(ServerTls::from_pem("", &one.key));
    assert!(words.contains("no certificate in the 0 bytes"), "{words}");
    let words = refused(ServerTls::from_pem(&one.chain, &one.chain));
    assert!(words.contains("there is no private key"), "{words}");
    let words = refused(ServerTls::from_pem(&one.chain, &other.key));
    assert!(words.contains("not that of its certificate"), "{words}");
    let cut = &one.chain[..one.chain.len() / 2];
    let words = refused(ClientTls::from_authority(cut));
    assert!(words.contains("no proper PEM"), "{words}");
    let broken = one.chain.replacen("MII", "AAA", 1);
    refused(ClientTls::from_authority(broken));
    let server = ServerTls::from_pem(&one.chain, &one.key).expect("good");
    refused(server.require_client_certificates("no PEM"));
}

#[test]
fn nothing_that_prints_shows_a_key() {
    let Made { chain, key } = made();
    let server = ServerTls::from_pem(&chain, &key).expect("good");
    let server = server.require_client_certificates(&chain).expect("good");
    let client = ClientTls::from_authority(&chain).expect("good");
    let client = client.identity(&chain, &key).expect("good");
    let transport = crate::TlsTransport::default().connecting(client).listening(server);
    let printed = format!("{transport:?}");
    assert!(printed.contains("known to 1 authorities"), "{printed}");
    let secrets = key.lines().filter(|line| !line.starts_with('-'));
    assert!(secrets.clone().count() > 1, "the key has lines");
    secrets.for_each(|line| assert!(!printed.contains(line), "{printed}"));
    // A key that is not one is not quoted either.
    let torn = key.replace("-----END", "-----NED");
    let words = refused(ServerTls::from_pem(&chain, torn));
    key.lines().filter(|line| !line.starts_with('-')).for_each(|line| {
        assert!(!words.contains(line), "{words}");
    });
}

#[test]
fn the_host_of_a_target_is_the_name_that_is_wanted() {
    for (address, host) in [("a.test:7", "a.test"), ("[::1]:7", "::1"), ("10.0.0.1:0", "10.0.0.1")]
    {
        assert_eq!(host_of(address), host);
        assert!(server_name(host).is_ok(), "{host}");
    }
}
