//! The command line of every benchmark binary.
//!
//! Does: turns arguments into [`Args`], or says what is wrong with them. Does not: run anything.

use std::str::FromStr;
use std::time::Duration;

use crate::Outcome;

const USAGE: &str = "usage: serve | load ADDRESS | up ADDRESS | down ADDRESS | in-process | encode \
     [--callers N] [--size BYTES] [--seconds S] [--beside BYTES] [--server PID] [--workers N]";

/// What the process was asked to do.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) command: Command,
    pub(crate) load: Load,
    /// Runtime threads; 1 is a current-thread runtime.
    pub(crate) workers: usize,
}

#[derive(Debug)]
pub(crate) enum Command {
    Serve,
    /// Load the server at this address.
    Load(String),
    /// Stream to or from the server at this address.
    Stream(String, Way),
    InProcess,
    Encode,
}

/// Which way the messages of a stream go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// The shape of the load.
#[derive(Debug)]
pub(crate) struct Load {
    /// Calls in flight: each caller makes its next call when the last one was answered.
    pub(crate) callers: usize,
    /// Bytes of payload, sent in the request and in the reply.
    pub(crate) size: usize,
    /// Length of the measured window; the warm-up before it is not part of it.
    pub(crate) window: Duration,
    /// Bytes of the payload that one more caller sends again and again; none without it.
    pub(crate) beside: Option<usize>,
    /// The server's process, whose CPU time is read over the same window.
    pub(crate) server: Option<u32>,
}

impl Args {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Self> {
        let command = match words.next().as_deref() {
            Some("serve") => Command::Serve,
            Some("load") => Command::Load(words.next().ok_or(USAGE)?),
            Some("up") => Command::Stream(words.next().ok_or(USAGE)?, Way::Up),
            Some("down") => Command::Stream(words.next().ok_or(USAGE)?, Way::Down),
            Some("in-process") => Command::InProcess,
            Some("encode") => Command::Encode,
            _ => return Err(USAGE.into()),
        };
        let mut args = Self {
            command,
            load: Load {
                callers: 1,
                size: 32,
                window: Duration::from_secs(1),
                beside: None,
                server: None,
            },
            workers: 1,
        };
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            args.set(&option, &value)?;
        }
        Ok(args)
    }

    fn set(&mut self, option: &str, value: &str) -> Outcome<()> {
        match option {
            "--callers" => self.load.callers = at_least_one(option, value)?,
            "--size" => self.load.size = number(option, value)?,
            "--seconds" => {
                self.load.window = Duration::try_from_secs_f64(number(option, value)?)?;
            }
            "--beside" => self.load.beside = Some(at_least_one(option, value)?),
            "--server" => self.load.server = Some(number(option, value)?),
            "--workers" => self.workers = at_least_one(option, value)?,
            _ => return Err(format!("unknown option {option}; {USAGE}").into()),
        }
        Ok(())
    }
}

fn number<T: FromStr>(option: &str, value: &str) -> Outcome<T> {
    value.parse().map_err(|_| format!("{option} needs a number, not {value}").into())
}

fn at_least_one(option: &str, value: &str) -> Outcome<usize> {
    match number(option, value)? {
        0 => Err(format!("{option} must be at least 1").into()),
        count => Ok(count),
    }
}
