//! A finished run on disk, and its replay to the last bit.
//!
//! An archive is a folder: `manifest.bin` (canonical manifest), `ledger.bin` (signed records, each behind its length
//! as a little-endian `u32`), `data/` (the text), `exhibits/` and `evidence/`. The steward's folder is one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_core::audit::{Judgement, recompute_sum};
use muster_core::codec::decode;
use muster_core::contribution::{Commitment, PartDigest};
use muster_core::ids::{Block, Digest, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::limits;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::Evidence;
use muster_core::messages::record::{Ban, Body, Record};
use muster_core::reduction::reduce;
use muster_core::sign::Signed;
use muster_core::state::Update;
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::reading;

use crate::replica::Replica;
use crate::witness::{Brought, Contributions, Exhibited};

/// A run read from disk; nothing in it is believed yet.
pub struct Archive {
    /// Its folder.
    pub folder: PathBuf,
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The records.
    pub records: Vec<Signed<Record>>,
    /// The text, checked against the manifest.
    pub dataset: Arc<Dataset>,
}

/// Why a replay ended early.
#[derive(Debug)]
pub enum ReplayError {
    /// The archive cannot be read here.
    Store(StoreError),
    /// The archive is not what an honest run leaves: where, and what differs.
    Wrong(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<StoreError> for ReplayError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What a replay found out, beyond that everything agrees.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Mean loss of each round over its counted leaves, in nats per token.
    pub losses: Vec<f64>,
    /// The last state root.
    pub root: Digest,
    /// Contributions that counted and were not what the state and the text give, with the share that the robust
    /// rule left them.
    pub bad: Vec<BadContribution>,
    /// Leaves counted, by member.
    pub leaves: BTreeMap<MemberId, u64>,
    /// Loss on the held-out text at the end, in nats per token.
    pub held_out_loss: Option<f64>,
}

/// A convict's contribution that counted.
#[derive(Clone, Debug)]
pub struct BadContribution {
    /// When.
    pub round: Round,
    /// Whose.
    pub member: MemberId,
    /// The mean factor that the rule left it; 1 is untouched.
    pub factor: f64,
}

impl Archive {
    /// Reads an archive.
    ///
    /// # Errors
    /// [`ReplayError::Store`] for files that cannot be read or are no archive, [`ReplayError::Wrong`] for bytes that
    /// are not canonical.
    pub fn open(folder: &Path) -> Result<Self, ReplayError> {
        let manifest: Manifest = decode(&reading::file(&folder.join("manifest.bin"))?)
            .map_err(|reject| ReplayError::Wrong(format!("manifest.bin: {reject}")))?;
        manifest.check().map_err(|misuse| ReplayError::Wrong(format!("manifest.bin: {misuse}")))?;
        let dataset = Dataset::open(&folder.join("data"), &manifest.data)?;
        let records = read_ledger(&folder.join("ledger.bin"))?;
        Ok(Self {
            folder: folder.to_owned(),
            manifest: Arc::new(manifest),
            records,
            dataset: Arc::new(dataset),
        })
    }

    /// Re-executes the whole run. `progress` is told the rounds done.
    ///
    /// # Errors
    /// [`ReplayError`] at the first thing that differs.
    pub fn replay(&self, replica: Replica, progress: &mut dyn FnMut(Round)) -> Result<Replayed, ReplayError> {
        let mut replay = Replay::new(self, replica);
        for signed in &self.records {
            replay.step(signed)?;
            if let Body::Outcome(outcome) = &signed.verify(self.manifest.run()).map_err(wrong("record"))?.body
            {
                progress(outcome.round);
            }
        }
        if replay.ledger.stage() != Stage::Closed {
            return Err(ReplayError::Wrong("the ledger ends before the run was closed".into()));
        }
        replay.replayed.root = replay.replica.state().root();
        replay.replayed.held_out_loss = replay.replica.held_out_loss();
        Ok(replay.replayed)
    }

    /// Re-executes the run up to the end of a round, before that is applied, and then evidence about a member in it.
    /// `progress` is told the rounds done.
    ///
    /// # Errors
    /// [`ReplayError`] at the first thing that differs, or when the ledger does not reach the round's end.
    pub fn re_execute(
        &self,
        replica: Replica,
        evidence: &Evidence,
        (round, member): (Round, MemberId),
        progress: &mut dyn FnMut(Round),
    ) -> Result<Judgement, ReplayError> {
        let mut replay = Replay::new(self, replica);
        for signed in &self.records {
            let record = signed.verify(self.manifest.run()).map_err(wrong("record"))?;
            if matches!(&record.body, Body::Outcome(outcome) if outcome.round >= round) {
                let brought = replay.brought(evidence, (round, member))?;
                return Ok(replay.replica.re_execute(evidence, brought));
            }
            replay.step(signed)?;
            progress(replay.replica.round());
        }
        Err(ReplayError::Wrong(format!("the ledger ends before round {round} does")))
    }
}

fn read_ledger(path: &Path) -> Result<Vec<Signed<Record>>, ReplayError> {
    let bytes = reading::file(path)?;
    let mut rest: &[u8] = &bytes;
    let mut records = Vec::new();
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let broken = |why: &str| ReplayError::Wrong(format!("{} at byte {at}: {why}", path.display()));
        let (length, after) = rest.split_first_chunk().ok_or_else(|| broken("cut short"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > limits::MESSAGE_BYTES {
            return Err(broken("a record longer than any message"));
        }
        let (record, after) = after.split_at_checked(length).ok_or_else(|| broken("cut short"))?;
        records.push(decode(record).map_err(|reject| broken(&reject.to_string()))?);
        rest = after;
    }
    Ok(records)
}

fn wrong<E: fmt::Display>(place: &str) -> impl Fn(E) -> ReplayError {
    let place = place.to_owned();
    move |error| ReplayError::Wrong(format!("{place}: {error}"))
}

/// For each slot, the sum of its factors weighted by coefficients, and that weight.
type Factors = BTreeMap<Slot, (f64, f64)>;

struct Replay<'a> {
    archive: &'a Archive,
    ledger: Ledger,
    replica: Replica,
    convicts: BTreeSet<MemberId>,
    replayed: Replayed,
}

impl<'a> Replay<'a> {
    fn new(archive: &'a Archive, replica: Replica) -> Self {
        let run = archive.manifest.run();
        let bodies =
            archive.records.iter().filter_map(|signed| Some(signed.verify(run).ok()?.into_inner().body));
        let convicts = bodies
            .filter_map(|body| if let Body::Ban(ban) = body { Some(ban.culprit) } else { None })
            .collect();
        let ledger = Ledger::new(archive.manifest.clone());
        Self { archive, ledger, replica, convicts, replayed: Replayed::default() }
    }

    fn step(&mut self, signed: &Signed<Record>) -> Result<(), ReplayError> {
        let place = format!("record {}", self.ledger.height());
        let record = self.ledger.apply(signed).map_err(wrong(&place))?;
        match &record.body {
            Body::Open(roots) if *roots != self.replica.state().roots() => Err(ReplayError::Wrong(format!(
                "{place}: the initial state is {}, sealed is {}",
                self.replica.state().root(),
                roots.root()
            ))),
            Body::Outcome(outcome) => {
                let view = self.ledger.round(outcome.round).cloned();
                let view =
                    view.ok_or_else(|| ReplayError::Wrong(format!("{place}: the round is not open")))?;
                self.round(&view)?;
                let root = self.replica.state().roots();
                if root != outcome.state {
                    let what = format!(
                        "round {} gives state {}, sealed is {}",
                        outcome.round,
                        root.root(),
                        outcome.state.root()
                    );
                    return Err(ReplayError::Wrong(what));
                }
                Ok(())
            }
            Body::Ban(ban) => self.ban(ban),
            _ => Ok(()),
        }
    }

    fn round(&mut self, view: &RoundView) -> Result<(), ReplayError> {
        let mut contributions = BTreeMap::new();
        let mut bad = BTreeSet::new();
        for (slot, commitment) in view.commitments() {
            if !view.counted(slot) {
                continue;
            }
            let (q, good) = self.contribution(view, slot)?;
            if !good {
                bad.insert(slot);
            }
            *self.replayed.leaves.entry(commitment.author).or_default() +=
                u64::from(commitment.commit.leaves);
            contributions.insert(slot, q);
        }
        let (update, factors) = self.reduced(view, &contributions)?;
        for slot in bad {
            let member = view.member_at(slot).unwrap_or(MemberId([0; 32]));
            let (sum, weight) = factors.get(&slot).copied().unwrap_or((0.0, 1.0));
            self.replayed.bad.push(BadContribution { round: view.round(), member, factor: sum / weight });
        }
        self.replayed.losses.push(mean_loss(view));
        self.replica.apply(&update);
        Ok(())
    }

    /// A counted contribution: recomputed, or a convict's exhibit when it is not what it should be.
    fn contribution(&mut self, view: &RoundView, slot: Slot) -> Result<(Vec<i32>, bool), ReplayError> {
        let place = format!("round {}, slot {slot}", view.round());
        let commitment =
            view.commitment(slot).ok_or_else(|| ReplayError::Wrong(format!("{place}: no commitment")))?;
        let root = view.state().root();
        let state = self.replica.state_at(&root);
        let state =
            state.ok_or_else(|| ReplayError::Wrong(format!("{place}: the state {root} is not kept")))?;
        let manifest = self.archive.manifest.clone();
        let mut text =
            Exhibited::new(Vec::new(), self.archive.dataset.clone(), &manifest, Brought::default());
        let commit = &commitment.commit;
        let sum = recompute_sum(&manifest, commit, &state, &mut text, self.replica.arithmetic());
        let (q, loss) = sum.ok_or_else(|| ReplayError::Wrong(format!("{place}: the text is not at hand")))?;
        let layout = self.ledger.layout().clone();
        if Commitment::new(&layout, &q).root() == commit.root && loss == commit.loss {
            return Ok((q, true));
        }
        let who = commitment.author;
        if !self.convicts.contains(&who) {
            return Err(ReplayError::Wrong(format!(
                "{place}: the contribution of {who} is not what the state and the text give, and it was never convicted"
            )));
        }
        let exhibit = reading::exhibit(&self.archive.folder, view.round(), &who)?;
        let exhibit = exhibit.ok_or_else(|| {
            ReplayError::Wrong(format!("{place}: the convict {who} counted here, and the exhibit is missing"))
        })?;
        if exhibit.len() != layout.parameters() || Commitment::new(&layout, &exhibit).root() != commit.root {
            return Err(ReplayError::Wrong(format!(
                "{place}: the exhibit of {who} is not what it committed to"
            )));
        }
        Ok((exhibit, false))
    }

    /// The update of a round by the run's rule, and what the rule left of each slot.
    fn reduced(
        &self,
        view: &RoundView,
        contributions: &BTreeMap<Slot, Vec<i32>>,
    ) -> Result<(Update, Factors), ReplayError> {
        let layout = self.ledger.layout();
        let mut update =
            Update { values: vec![0.0; layout.parameters()], present: vec![false; layout.blocks().len()] };
        let mut factors = Factors::new();
        let results = view.results().unwrap_or_default();
        for ((part, plan), (result, inputs)) in
            view.parts().iter().enumerate().zip(results.iter().zip(view.inputs()))
        {
            let Some(result) = result else { continue };
            let leaves = |slot| view.commitment(slot).map(|c| c.commit.leaves);
            let input = |slot, block| Some(&contributions.get(&slot)?[layout.block(block)?.range.clone()]);
            let reduced = reduce(&self.archive.manifest, layout, &plan.blocks, inputs, leaves, input);
            let reduced = reduced.ok_or_else(|| {
                ReplayError::Wrong(format!("round {}, part {part}: the rule gives nothing", view.round()))
            })?;
            let mut applied = reduced.values;
            if reduced.digest != result.digest {
                applied = self.wrong_part(view, Part(part as u16), &plan.blocks)?;
            }
            let mut size = 0.0;
            for (block, values) in plan.blocks.iter().zip(&applied) {
                if let Some(range) = layout.block(*block) {
                    update.values[range.range.clone()].copy_from_slice(values);
                    update.present[block.index()] = true;
                    size += values.len() as f64;
                }
            }
            for (slot, factor) in reduced.factors {
                let (sum, weight) = factors.entry(slot).or_default();
                *sum += factor * size;
                *weight += size;
            }
        }
        Ok((update, factors))
    }

    /// The values of a part that counted and is not what the rule gives: its aggregator was convicted, and they are
    /// kept.
    fn wrong_part(
        &self,
        view: &RoundView,
        part: Part,
        blocks: &[Block],
    ) -> Result<Vec<Vec<f32>>, ReplayError> {
        let round = view.round();
        let wrong = |why: &str| ReplayError::Wrong(format!("round {round}, part {part}: {why}"));
        let result = view.results().and_then(|results| results.get(part.index())?.as_ref());
        let result = result.ok_or_else(|| wrong("it has no result"))?;
        let author = view.reducer(part, result.attempt);
        if !author.is_some_and(|author| self.convicts.contains(&author)) {
            return Err(wrong(
                "the sealed result is not what the rule gives, and its author was never convicted",
            ));
        }
        let kept = reading::part_exhibit(&self.archive.folder, round, part)?;
        let kept = kept.ok_or_else(|| wrong("its author was convicted, and the values are missing"))?;
        let mut rest = kept.as_slice();
        let mut values = Vec::with_capacity(blocks.len());
        for block in blocks {
            let length = self.ledger.layout().block(*block).map_or(0, |range| range.range.len());
            let (own, after) =
                rest.split_at_checked(length).ok_or_else(|| wrong("the kept values are cut short"))?;
            values.push(own.to_vec());
            rest = after;
        }
        let digest = values.iter().fold(PartDigest::default(), |digest, block| digest.block(block)).finish();
        if !rest.is_empty() || digest != result.digest {
            return Err(wrong("the kept values are not those that were signed"));
        }
        Ok(values)
    }

    /// What evidence refers to: the round, and of a part every contribution that it counts.
    fn brought(
        &mut self,
        evidence: &Evidence,
        (round, member): (Round, MemberId),
    ) -> Result<Brought, ReplayError> {
        let view = self.ledger.round(round).cloned();
        let mut contributions = Contributions::new();
        if let Some(exhibit) = reading::exhibit(&self.archive.folder, round, &member)? {
            contributions.insert((round, member), exhibit);
        }
        if let (Evidence::Aggregation(part), Some(view)) = (evidence, &view) {
            let result = part.result.verify(self.archive.manifest.run()).map_err(wrong("a result"))?;
            for slot in result.inputs.slots() {
                let Some(author) = view.member_at(slot) else { continue };
                contributions.insert((round, author), self.contribution(view, slot)?.0);
            }
        }
        Ok(Brought { contributions, round: view, ..Brought::default() })
    }

    fn ban(&mut self, ban: &Ban) -> Result<(), ReplayError> {
        let bytes = reading::evidence(&self.archive.folder, &ban.evidence)?;
        let bytes =
            bytes.ok_or_else(|| ReplayError::Wrong(format!("the evidence {} is missing", ban.evidence)))?;
        let evidence: Evidence = decode(&bytes).map_err(wrong(&format!("evidence {}", ban.evidence)))?;
        if evidence.digest() != ban.evidence {
            return Err(ReplayError::Wrong(format!("the evidence {} has another hash", ban.evidence)));
        }
        let brought = self.brought(&evidence, (ban.round, ban.culprit))?;
        match self.replica.re_execute(&evidence, brought) {
            Judgement::Guilty { culprit, finding, round, .. }
                if culprit == ban.culprit && finding == ban.finding && round == ban.round =>
            {
                Ok(())
            }
            other => Err(ReplayError::Wrong(format!(
                "the ban of {} does not follow from its evidence: {other:?}",
                ban.culprit
            ))),
        }
    }
}

/// Mean loss of a round over its frozen leaves, in nats per token.
pub fn mean_loss(view: &RoundView) -> f64 {
    let (loss, leaves) = view.commitments().fold((0.0, 0.0), |(loss, leaves), (_, c)| {
        (loss + c.commit.loss as f64, leaves + f64::from(c.commit.leaves))
    });
    loss / f64::max(leaves, 1.0) / muster_core::grid::LOSS_ONE as f64
}
