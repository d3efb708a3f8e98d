use std::io::Write;

use flate2::write::GzEncoder;

use super::*;

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).expect("a Vec grows");
    encoder.finish().expect("a Vec grows")
}

/// `bytes` in segments of `len`.
fn cut(bytes: &[u8], len: usize) -> Body {
    bytes.chunks(len).map(Bytes::copy_from_slice).collect()
}

fn unzip(bytes: &[u8], limit: usize) -> Result<Bytes, DecompressError> {
    decompress(Encoding::Gzip, cut(bytes, 999), limit).map(Body::into_bytes)
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"abcdefghijklm"[at * at % 13]).collect()
}

#[test]
fn a_message_comes_out_as_it_went_in_however_it_is_cut() {
    for len in [0, 1, LEAST_STEP - 1, LEAST_STEP, LEAST_STEP + 1, FIRST_STEP * 2, 3 << 20] {
        let plain = text(len);
        let packed = gzip(&plain);
        for cut_at in [1, 7, packed.len().max(1)].into_iter().filter(|_| len < 1 << 20) {
            let body = decompress(Encoding::Gzip, cut(&packed, cut_at), len).expect("gzip");
            assert!(body.into_bytes() == plain, "{len} bytes cut at {cut_at}");
        }
        assert!(unzip(&packed, len).expect("gzip") == plain, "{len}");
        assert_eq!(len_of(Encoding::Gzip, cut(&packed, 100), usize::MAX), len);
    }
}

#[test]
fn the_limit_is_exact() {
    let packed = gzip(&text(5000));
    assert_eq!(unzip(&packed, 5000).expect("as long as may be").len(), 5000);
    for limit in [4999, 4000, 1, 0] {
        assert!(matches!(unzip(&packed, limit), Err(DecompressError::TooLong)), "{limit}");
        assert_eq!(len_of(Encoding::Gzip, cut(&packed, 100), limit), limit + 1);
    }
}

/// Zeros without end, and how many were taken.
struct Endless(usize);

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0 += into.len();
        Ok(into.len())
    }
}

#[test]
fn no_more_is_taken_out_than_the_limit_and_a_byte() {
    for limit in [0, 1, 1000, 1 << 20, (5 << 20) + 3] {
        let mut endless = Endless(0);
        let error = read_up_to(&mut endless, LEAST_STEP, limit).expect_err("too long");
        assert!(matches!(error, DecompressError::TooLong));
        // Memory is taken for what is read into it, and for nothing else.
        assert_eq!(endless.0, limit + 1);
    }
}

#[test]
fn members_that_follow_one_another_are_one_message() {
    let both = [gzip(b"first, "), gzip(b""), gzip(b"second")].concat();
    assert_eq!(unzip(&both, 100).expect("gzip"), "first, second");
    let many: Vec<_> = (0..2000).flat_map(|_| gzip(b"")).collect();
    assert_eq!(unzip(&many, 0).expect("gzip"), "");
}

#[test]
fn what_is_cut_off_or_goes_on_behind_the_end_is_no_message() {
    let whole = gzip(&text(300));
    for len in 0..whole.len() {
        assert!(matches!(unzip(&whole[..len], 1000), Err(DecompressError::Malformed(_))), "{len}");
    }
    for behind in [&b"\0"[..], b"garbage behind", &whole[..5]] {
        let bytes = [&whole, behind].concat();
        assert!(matches!(unzip(&bytes, 1000), Err(DecompressError::Malformed(_))), "{behind:?}");
    }
    let mut wrong = whole;
    let at = wrong.len() - 8;
    wrong[at] ^= 1;
    assert!(matches!(unzip(&wrong, 1000), Err(DecompressError::Malformed(_))), "its checksum");
}

#[cfg(feature = "zstd")]
mod of_zstd {
    use super::*;

    fn pack(plain: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(plain, 3).expect("a Vec grows")
    }

    fn unpack(bytes: &[u8], limit: usize) -> Result<Bytes, DecompressError> {
        decompress(Encoding::Zstd, cut(bytes, 99), limit).map(Body::into_bytes)
    }

    #[test]
    fn the_same_rules_hold() {
        let plain = text(200_000);
        let packed = pack(&plain);
        assert!(unpack(&packed, plain.len()).expect("zstd") == plain);
        assert!(matches!(unpack(&packed, plain.len() - 1), Err(DecompressError::TooLong)));
        assert_eq!(unpack(&pack(b""), 0).expect("zstd"), "");
        for len in 0..packed.len() {
            let broken = unpack(&packed[..len], 1 << 20);
            assert!(matches!(broken, Err(DecompressError::Malformed(_))), "{len}");
        }
        let two = [&packed[..], &packed].concat();
        assert_eq!(unpack(&two, 1 << 20).expect("two frames").len(), 2 * plain.len());
        let behind = [&packed[..], b"garbage"].concat();
        assert!(matches!(unpack(&behind, 1 << 20), Err(DecompressError::Malformed(_))));
    }

    #[test]
    fn a_window_beyond_what_decoders_must_have_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("a Vec grows");
        encoder.window_log(27).expect("within the library's bounds");
        encoder.write_all(&text(1000)).expect("a Vec grows");
        let packed = encoder.finish().expect("a Vec grows");
        assert!(matches!(unpack(&packed, 1 << 20), Err(DecompressError::Malformed(_))));
    }
}
