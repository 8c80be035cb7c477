//! What watching costs: seconds and bytes of audits, of drawn blocks, and of following the run.

use std::fmt::Write;
use std::time::Duration;

use muster_core::messages::wire::BlockData;

use muster_roles::verifier::audits::{Tally, WorkKind};

/// What a verifier has spent since its process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCost {
    /// Wall time of recomputing drawn leaves and of checking sums.
    audits: Duration,
    /// Wall time of everything else that was recomputed: rechecks, second opinions, contributions of the silent.
    others: Duration,
    /// Wall time of reducing drawn blocks again.
    blocks: Duration,
    /// Bytes of contributions fetched to check their sums; proofs and channels not counted.
    contributions: u64,
    /// Bytes of inputs of drawn blocks.
    inputs: u64,
    /// Drawn blocks that were reduced again.
    reduced: u64,
}

impl AuditCost {
    /// Something was computed.
    pub fn computed(&mut self, kind: &WorkKind, took: Duration) {
        match kind {
            WorkKind::Leaves(..) | WorkKind::Contribution => self.audits += took,
            WorkKind::Everything
            | WorkKind::SecondOpinion(..)
            | WorkKind::Recheck(_)
            | WorkKind::SecondRecheck(..)
            | WorkKind::Opinion(_) => self.others += took,
        }
    }

    /// Blocks of an audited contribution came.
    pub fn fetched<'a>(&mut self, blocks: impl Iterator<Item = &'a BlockData>) {
        self.contributions += bytes(blocks);
    }

    /// So many drawn blocks were reduced again, from these inputs.
    pub fn looked<'a>(&mut self, count: usize, inputs: impl Iterator<Item = &'a BlockData>, took: Duration) {
        self.blocks += took;
        self.inputs += bytes(inputs);
        self.reduced += count as u64;
    }

    /// Fields of `result.json`, after those that every member has.
    pub fn json(&self, tally: &Tally, rounds: u32, sent: u64, received: u64) -> String {
        let Self { audits, others, blocks, contributions, inputs, reduced } = self;
        let mut text = String::new();
        let _ = write!(
            text,
            "\"rounds\":{rounds},\"audits\":{},\"blocks\":{reduced},\"bytes_sent\":{sent},\"bytes_received\":{received},\
             \"bytes\":{{\"audits\":{contributions},\"blocks\":{inputs}}},\
             \"seconds\":{{\"audits\":{:.6},\"rechecks\":{:.6},\"blocks\":{:.6}}}",
            tally.passed + tally.guilty + tally.undecided,
            audits.as_secs_f64(),
            others.as_secs_f64(),
            blocks.as_secs_f64(),
        );
        text
    }
}

fn bytes<'a>(blocks: impl Iterator<Item = &'a BlockData>) -> u64 {
    blocks.flat_map(|data| data.chunks.iter()).map(|chunk| chunk.len() as u64).sum()
}
