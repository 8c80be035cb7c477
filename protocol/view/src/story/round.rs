//! An ended round.

use std::collections::BTreeMap;

use muster_core::grid::LOSS_ONE;
use muster_core::ids::MemberId;
use muster_core::ledger::{Ledger, RoundView};
use serde::Serialize;

use super::digest;

/// A round that is over.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RoundLine {
    /// Its number.
    pub round: u32,
    /// Height of its Outcome.
    pub height: u64,
    /// Seats.
    pub seats: u32,
    /// Commitments that were frozen.
    pub committed: u32,
    /// Leaves that counted.
    pub leaves: u64,
    /// Tokens of these leaves.
    pub tokens: u64,
    /// Mean loss over the leaves that counted, in nats a token, as the members claim it; 0 where none counted.
    pub loss: f64,
    /// Parts, and how many of them were left out.
    pub parts: u32,
    /// Parts without a result.
    pub lost: u32,
    /// Whether the state went back to before it.
    pub taken_back: bool,
    /// Root of the state after it.
    pub state: String,
    /// Bytes that it moved between members; from the log.
    pub bytes: Option<u64>,
    /// When its phases ended.
    pub phases: Phases,
    /// Who counted.
    #[serde(skip)]
    pub counted: Vec<Counted>,
}

/// A counted contribution.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The author's place in the order of admission.
    pub member: u32,
    /// Its leaves.
    pub leaves: u32,
    /// As how many leaves they weigh.
    pub weight: u32,
}

impl RoundLine {
    pub(super) fn ended(
        view: &RoundView,
        height: u64,
        ledger: &Ledger,
        phases: Phases,
        index: &BTreeMap<MemberId, usize>,
    ) -> Self {
        let manifest = ledger.manifest();
        let (mut leaves, mut loss, mut committed) = (0.0, 0.0, 0);
        let mut counted = Vec::new();
        for (slot, weighted) in view.commitments() {
            committed += 1;
            if view.counted(slot) {
                leaves += f64::from(weighted.commit.leaves);
                loss += weighted.commit.loss as f64;
            }
            let member = view.member_at(slot).and_then(|member| index.get(&member));
            if let Some(member) = member.filter(|_| view.counted(slot)) {
                let (leaves, weight) = (weighted.commit.leaves, weighted.weight);
                counted.push(Counted { member: *member as u32, leaves, weight });
            }
        }
        // A claim may be anything; a chart must stay one.
        let most = 4.0 * f64::from(manifest.model.vocabulary).ln();
        let whole: u64 = counted.iter().map(|share| u64::from(share.leaves)).sum();
        let results = view.results().unwrap_or_default();
        Self {
            round: view.round().0,
            height,
            seats: view.seats().len() as u32,
            committed,
            leaves: whole,
            tokens: whole * u64::from(manifest.windows_of_leaf()) * u64::from(manifest.model.sequence),
            loss: (loss / f64::max(leaves, 1.0) / LOSS_ONE as f64).clamp(0.0, most),
            parts: results.len() as u32,
            lost: results.iter().filter(|result| result.is_none()).count() as u32,
            taken_back: false,
            state: digest(&ledger.state().root()),
            bytes: None,
            phases,
            counted,
        }
    }
}

/// Seconds from the beginning of a round to the end of each of its phases, as far as somebody who was there measured them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// When it began, in Unix time.
    pub began: Option<f64>,
    /// Until the commitments were frozen: gradients were computed.
    pub freeze: Option<f64>,
    /// Until it was sealed who counts: contributions were exchanged.
    pub inputs: Option<f64>,
    /// Until the values were at the steward.
    pub results: Option<f64>,
    /// Until the Outcome.
    pub seconds: Option<f64>,
}

impl Phases {
    /// A round that begins now; none for one that was read later.
    pub(super) fn begun(now: Option<f64>) -> Self {
        Self { began: now, ..Self::default() }
    }

    /// The first stamp of a kind counts: a second Inputs is of another try.
    pub(super) fn frozen(&mut self, now: Option<f64>) {
        self.freeze = self.freeze.or(self.since(now));
    }

    /// Likewise.
    pub(super) fn exchanged(&mut self, now: Option<f64>) {
        self.inputs = self.inputs.or(self.since(now));
    }

    pub(super) fn ended(mut self, now: Option<f64>) -> Self {
        self.seconds = self.since(now);
        self
    }

    fn since(&self, now: Option<f64>) -> Option<f64> {
        now.zip(self.began).map(|(now, began)| now - began)
    }

    /// Seconds of computing, exchanging, and reducing and applying, where all are known.
    pub fn parts(&self) -> Option<[f64; 3]> {
        let (freeze, inputs, whole) = (self.freeze?, self.inputs?, self.seconds?);
        Some([freeze, (inputs - freeze).max(0.0), (whole - inputs).max(0.0)])
    }
}
