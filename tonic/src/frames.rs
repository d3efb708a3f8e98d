//! gRPC's frames: a flag, a length of four bytes and a message.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use verbwire::Body;

use crate::encoding::Named;

/// Bytes before a message.
pub(crate) const PREFIX: usize = 5;

/// Messages up to this length go into one piece with their prefix: to copy them costs less than a piece of their own.
const JOINED: usize = 1024;

/// Why bytes are no frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFrame {
    #[error("a frame has the flag {0}, and flags are 0 and 1")]
    Flag(u8),
    #[error("a frame is compressed, and the headers name no encoding")]
    Compressed,
    #[error(
        "a frame is compressed by {0}, which is not carried; gzip is, and zstd with that feature of verbwire"
    )]
    Encoding(String),
    #[error("a frame announces {len} bytes, and the bridge takes {limit}")]
    TooLong { len: usize, limit: usize },
    #[error("the body ended inside a frame, after {had} of its bytes")]
    Ended { had: usize },
}

/// Pieces of a body, cut into messages without a copy.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Cutter {
    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// The next message, once all of it is there; `named` says how those are compressed that are.
    pub(crate) fn cut(&mut self, limit: usize, named: &Named) -> Result<Option<Body>, BadFrame> {
        if self.len < PREFIX {
            return Ok(None);
        }
        let mut prefix = [0; PREFIX];
        let bytes = self.pieces.iter().flatten();
        prefix.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let [flag, a, b, c, d] = prefix;
        let encoding = match (flag, named) {
            (0, _) => None,
            (1, Named::Known(encoding)) => Some(*encoding),
            (1, Named::None) => return Err(BadFrame::Compressed),
            (1, Named::Unknown(name)) => return Err(BadFrame::Encoding(name.clone())),
            (other, _) => return Err(BadFrame::Flag(other)),
        };
        let announced = u32::from_be_bytes([a, b, c, d]);
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        if len > limit {
            return Err(BadFrame::TooLong { len, limit });
        }
        if self.len - PREFIX < len {
            return Ok(None);
        }
        self.take(PREFIX);
        let message = self.take(len);
        Ok(Some(match encoding {
            Some(encoding) => message.with_encoding(encoding),
            None => message,
        }))
    }

    /// Nothing more comes.
    pub(crate) fn check_end(&self) -> Result<(), BadFrame> {
        match self.len {
            0 => Ok(()),
            had => Err(BadFrame::Ended { had }),
        }
    }

    /// Takes so many bytes, which are there.
    fn take(&mut self, mut len: usize) -> Body {
        let mut taken = Body::new();
        self.len -= len;
        while len > 0 {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            if piece.len() > len {
                taken.push(piece.split_to(len));
                self.pieces.push_front(piece);
                break;
            }
            len -= piece.len();
            taken.push(piece);
        }
        taken
    }
}

/// A message that is not compressed as pieces of a body, with its prefix. `None` if it is longer than a frame can say.
pub(crate) fn framed(message: &Body) -> Option<VecDeque<Bytes>> {
    let len = message.len();
    let announced = u32::try_from(len).ok()?;
    let is_joined = len <= JOINED;
    let mut first = BytesMut::with_capacity(PREFIX + if is_joined { len } else { 0 });
    first.put_u8(0);
    first.put_u32(announced);
    if is_joined {
        message.segments().for_each(|segment| first.put_slice(segment));
        return Some(VecDeque::from([first.freeze()]));
    }
    Some(std::iter::once(first.freeze()).chain(message.segments().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(all: &[u8], len: usize) -> Cutter {
        let mut cutter = Cutter::default();
        all.chunks(len).for_each(|piece| cutter.push(Bytes::copy_from_slice(piece)));
        cutter
    }

    fn joined(messages: &[&[u8]]) -> Vec<u8> {
        let framed = messages.iter().map(|message| {
            let body = Body::from(Bytes::copy_from_slice(message));
            framed(&body).expect("short").into_iter().flatten().collect::<Vec<_>>()
        });
        framed.flatten().collect()
    }

    #[test]
    fn messages_come_out_however_the_body_was_cut() {
        let long = vec![7; 5000];
        let messages: [&[u8]; 5] = [b"", b"a", &long, b"", b"bc"];
        let all = joined(&messages);
        for len in [1, 2, 3, 5, 6, 11, 4999, all.len()] {
            let mut cutter = pieces(&all, len);
            for message in messages {
                let found =
                    cutter.cut(5000, &Named::None).expect("frames").expect("all of it is there");
                assert_eq!(found.into_bytes(), message);
            }
            assert!(cutter.cut(5000, &Named::None).expect("nothing wrong").is_none());
            cutter.check_end().expect("nothing is left");
        }
    }

    #[test]
    fn a_long_message_is_not_copied() {
        let long = Bytes::from(vec![1; 100_000]);
        let mut cutter = Cutter::default();
        let pieces = framed(&long.clone().into()).expect("short");
        pieces.into_iter().for_each(|one| cutter.push(one));
        let cut = cutter.cut(100_000, &Named::None).expect("a frame").expect("whole");
        assert_eq!(cut.segments().next().expect("one").as_ptr(), long.as_ptr());
    }

    #[test]
    fn a_bad_frame_is_refused_before_its_message_is_there() {
        let cut = |bytes: &[u8]| pieces(bytes, 2).cut(10, &Named::None);
        assert_eq!(cut(&[2, 0, 0, 0, 0]).err(), Some(BadFrame::Flag(2)));
        assert_eq!(cut(&[1, 0, 0, 0, 0]).err(), Some(BadFrame::Compressed));
        let named = Named::Unknown("deflate".to_owned());
        let unknown = pieces(&[1, 0, 0, 0, 0], 2).cut(10, &named).err();
        assert_eq!(unknown, Some(BadFrame::Encoding("deflate".to_owned())));
        let too_long = BadFrame::TooLong { len: 11, limit: 10 };
        assert_eq!(cut(&[0, 0, 0, 0, 11]).err(), Some(too_long));
        assert!(cut(&[0, 255, 255, 255, 255]).is_err());
        for had in 1..8 {
            let mut cutter = pieces(&[0, 0, 0, 0, 3, 1, 1][..had.min(7)], 2);
            assert!(cutter.cut(10, &Named::None).expect("no bad frame").is_none());
            assert_eq!(cutter.check_end(), Err(BadFrame::Ended { had: had.min(7) }));
        }
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_nothing_panics_and_no_message_is_longer_than_its_limit(
            bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..100),
            piece in 1..20usize,
            limit in 0..300usize,
        ) {
            let mut cutter = pieces(&bytes, piece);
            let mut came = 0;
            while let Ok(Some(message)) = cutter.cut(limit, &Named::None) {
                prop_assert!(message.len() <= limit);
                came += PREFIX + message.len();
            }
            prop_assert!(came <= bytes.len());
        }
    }
}
