//! From compressed bytes to a message, within a limit.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use flate2::bufread::MultiGzDecoder;

use super::Encoding;
use crate::buf::Body;

/// The first segment at least: most messages are short.
const LEAST_STEP: usize = 1 << 10;

/// The first segment at most, and what is looked at a time where nothing is kept.
const FIRST_STEP: usize = 64 << 10;

/// Longest segment. 1 MiB: a large field that goes over the end of one is copied, and a small one holds no more than one.
const MOST_STEP: usize = 1 << 20;

/// Longest window that zstd may ask for, as a power of two. 8 MiB, which RFC 8878 asks decoders to have; the library would
/// allow 128.
#[cfg(feature = "zstd")]
const ZSTD_WINDOW_LOG: u32 = 23;

/// Why bytes became no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecompressError {
    /// It has more bytes than the limit.
    #[error("the message is longer than its limit")]
    TooLong,
    /// The bytes are none of the encoding, end early, or go on behind its end.
    #[error(transparent)]
    Malformed(#[from] io::Error),
}

/// The message. Memory is taken as it comes out, and for no more than `limit` bytes and one.
pub(super) fn decompress(
    encoding: Encoding,
    compressed: Body,
    limit: usize,
) -> Result<Body, DecompressError> {
    let step = compressed.len().saturating_mul(4).clamp(LEAST_STEP, FIRST_STEP);
    let mut source = source(encoding, compressed)?;
    read_up_to(&mut source, step, limit)
}

/// Bytes of the message; of one that is broken, those before that, and of one that is longer than `limit`, one more.
pub(super) fn len_of(encoding: Encoding, compressed: Body, limit: usize) -> usize {
    let Ok(source) = source(encoding, compressed) else { return 0 };
    let mut source = source.take(u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1));
    let (mut scratch, mut len) = (vec![0; FIRST_STEP.min(limit.saturating_add(1))], 0);
    while let Ok(read @ 1..) = source.read(&mut scratch) {
        len += read;
    }
    len
}

/// What comes out of `compressed`. Members of gzip and frames of zstd that follow one another are one message, as RFC 1952 and
/// RFC 8878 have them; anything else behind the end is an error.
fn source(encoding: Encoding, compressed: Body) -> io::Result<Source> {
    if compressed.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let input = compressed.reader().reader();
    Ok(match encoding {
        Encoding::Gzip => Box::new(MultiGzDecoder::new(input)),
        #[cfg(feature = "zstd")]
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
    })
}

type Source = Box<dyn Read>;

fn read_up_to(
    source: &mut impl Read,
    mut step: usize,
    limit: usize,
) -> Result<Body, DecompressError> {
    let (mut body, mut len) = (Body::new(), 0);
    loop {
        // A byte beyond the limit shows that there are more.
        let room = step.min(limit.saturating_sub(len).saturating_add(1));
        let mut segment = vec![0; room];
        let filled = fill(source, &mut segment)?;
        len += filled;
        if len > limit {
            return Err(DecompressError::TooLong);
        }
        segment.truncate(filled);
        segment.shrink_to_fit();
        body.push(Bytes::from(segment));
        if filled < room {
            return Ok(body);
        }
        step = (step * 2).min(MOST_STEP);
    }
}

/// Fills `segment` as far as there is something.
fn fill(source: &mut impl Read, segment: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < segment.len() {
        match source.read(&mut segment[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests;
