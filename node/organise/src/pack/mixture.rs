//! Several sources of texts: one after the other, or mixed by weight.

use std::path::Path;
use std::rc::Rc;

use muster_replica::exit::{Failure, Outcome};

use super::inputs::Texts;
use super::opened::Input;
use super::piece::{Piece, Reading};

/// A source.
pub(super) struct Share {
    name: String,
    texts: Texts,
    weight: Option<u32>,
    /// Bytes of text that came from it.
    taken: u64,
}

impl Share {
    pub(super) fn new(path: &Path, inputs: Vec<Input>, weight: Option<u32>, reading: &Rc<Reading>) -> Self {
        let (name, texts) = (path.display().to_string(), Texts::new(inputs, reading));
        Self { name, texts, weight, taken: 0 }
    }
}

/// Texts of sources. Where these have weights, each next text is of the source that has the least for its weight, and the first
/// source that has no more ends all, so that the shares hold from the beginning to the end.
pub(super) struct Mixture {
    shares: Vec<Share>,
    /// The source of the text in work, or the last one.
    current: usize,
    /// Whether that text goes on.
    open: bool,
    /// Whether nothing more comes.
    over: bool,
}

impl Mixture {
    pub(super) fn new(shares: Vec<Share>) -> Self {
        Self { shares, current: 0, open: false, over: false }
    }

    /// What is wrong with files whose turn has not come.
    pub(super) fn faults(&mut self) -> Vec<Failure> {
        self.shares.iter_mut().flat_map(|share| share.texts.faults()).collect()
    }

    /// What came from each source, and which ended.
    pub(super) fn account(&self) -> String {
        let all: u64 = self.shares.iter().map(|share| share.taken).sum();
        let part = |share: &Share| {
            let percent = share.taken as f64 * 100.0 / all.max(1) as f64;
            format!("{} {} bytes ({percent:.1} %)", share.name, share.taken)
        };
        let parts: Vec<String> = self.shares.iter().map(part).collect();
        let ended = match self.shares.get(self.current).filter(|_| self.over) {
            Some(share) => format!("; {} has no more, what is left of others was left out", share.name),
            None => String::new(),
        };
        format!("mixed: {}{ended}", parts.join(", "))
    }

    /// The source of the next text: the one that has the least for its weight, the first among equals.
    fn least(&self) -> usize {
        let shares =
            self.shares.iter().enumerate().filter_map(|(at, share)| Some((at, share.taken, share.weight?)));
        let least = shares.min_by(|(_, one, weight), (_, other, heavy)| {
            (u128::from(*one) * u128::from(*heavy)).cmp(&(u128::from(*other) * u128::from(*weight)))
        });
        least.map_or(self.current, |(at, ..)| at)
    }
}

impl Iterator for Mixture {
    type Item = Outcome<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.over {
            if !self.open {
                self.current = self.least();
            }
            let share = self.shares.get_mut(self.current)?;
            match share.texts.next() {
                Some(Ok(piece)) => {
                    share.taken += piece.text.len() as u64;
                    self.open = !piece.ends;
                    return Some(Ok(piece));
                }
                Some(Err(failure)) => return Some(Err(failure)),
                None if share.weight.is_some() => self.over = true,
                None => self.current += 1,
            }
        }
        None
    }
}
