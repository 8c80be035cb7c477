//! Re-executing a run from its archive, round by round, in whole or in samples; it can be interrupted and resumed.

use std::collections::{BTreeMap, BTreeSet};

use borsh::{BorshDeserialize, BorshSerialize};
use muster_compute::{Exact, Path};
use muster_core::audit::{Claim, Judgement, claim, judge};
use muster_core::codec::decode;
use muster_core::contribution::{Commitment, PartDigest};
use muster_core::error::Misuse;
use muster_core::hash::{Domain, Hasher, below};
use muster_core::ids::{Block, Digest, Height, MemberId, Part, Round, RunId, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{self, Ledger, RoundView, Stage};
use muster_core::messages::evidence::{Evidence, Reduction};
use muster_core::messages::record::{Ban, Body, Outcome, Record, Rewind};
use muster_core::messages::round::{Commit, PartResult};
use muster_core::messages::wire::BlockData;
use muster_core::reduction::reduce;
use muster_core::sign::{Signed, Verified};
use muster_core::state::{Arithmetic, State, StateRoots, Update};
use muster_store::reading;

use super::exhibits::{CountedContribution, exhibit};
use super::states::initial;
use super::{Archive, BadContribution, ReplayError, Replayed, mean_loss, wrong};
use crate::crew::{Crew, spread};
use crate::replica::HELD_OUT_WINDOWS;
use crate::witness::{Brought, Exhibited};

/// How to replay.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads, at least one.
    pub threads: usize,
    /// Kernel path, instead of the fastest.
    pub path: Option<Path>,
    /// Which contributions are recomputed; all without.
    pub sample: Option<Sample>,
}

/// A share of the contributions, drawn by a seed that nobody knew when they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Sample {
    /// Probability of each contribution, in parts per million.
    pub ppm: u32,
    /// The seed.
    pub seed: [u8; 32],
}

impl Sample {
    /// Whether a contribution is recomputed.
    pub fn takes(&self, round: Round, slot: Slot) -> bool {
        let drawn = Hasher::new(Domain::FILE).part(b"sample").part(&self.seed).value(&round).value(&slot);
        below(drawn.number(), 1_000_000) < u64::from(self.ppm)
    }

    /// A fresh sample; `share` lies in 0 to 1.
    ///
    /// # Errors
    /// [`Misuse`] for another share.
    pub fn of(share: f64, seed: [u8; 32]) -> Result<Self, Misuse> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Misuse("a share lies between 0 and 1".into()));
        }
        Ok(Self { ppm: (share * 1e6).round() as u32, seed })
    }
}

/// How far a replay came, to go on from there. It says of what it names only that somebody checked it before: who
/// resumes trusts whoever wrote it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Progress {
    /// The run.
    pub run: RunId,
    /// What was sampled.
    pub sample: Option<Sample>,
    /// Records re-executed, and the head after them.
    pub height: Height,
    /// See `height`.
    pub head: Digest,
    /// The round that comes next.
    pub round: Round,
    /// Earlier rounds whose states are still needed.
    pub held: Vec<Round>,
    /// Contributions recomputed so far.
    pub recomputed: u64,
    /// What was found: round, member, and the bits of the factor.
    bad: Vec<(Round, MemberId, Option<u64>)>,
}

/// Contributions of a round.
#[derive(Default)]
struct RecomputedRound {
    /// As they were committed; convicts' at least as far as they counted.
    sums: BTreeMap<Slot, Vec<i32>>,
    /// Those that are not what the state and the text give, with the proved blocks where the whole is not kept.
    bad: BTreeMap<Slot, Vec<BlockData>>,
    /// Parts of which somebody's integers are missing.
    missing: BTreeSet<Part>,
}

/// For each slot, the sum of its factors weighted by coefficients, and that weight.
type Factors = BTreeMap<Slot, (f64, f64)>;

/// A run that is being re-executed.
pub struct Replay<'a> {
    archive: &'a Archive,
    plan: Plan,
    outlook: Outlook,
    ledger: Ledger,
    state: State,
    /// For everything but leaves.
    arithmetic: Exact,
    crew: Crew,
    held: BTreeMap<Round, State>,
    /// Rounds of which somebody is convicted later: the ledger may have forgotten them by then.
    views: BTreeMap<Round, RoundView>,
    recomputed: u64,
    counted: u64,
    replayed: Replayed,
}

/// What is known of the run before it is re-executed.
struct Outlook {
    convicts: BTreeSet<MemberId>,
    /// Rounds whose states are needed again, and up to which record.
    needs: Vec<(Round, Height)>,
    /// Leaves to recompute, a little too many where contributions did not count.
    leaves: u64,
}

impl Outlook {
    fn of(archive: &Archive, sample: Option<&Sample>) -> Self {
        let run = archive.manifest.run();
        let mut outlook = Self { convicts: BTreeSet::new(), needs: Vec::new(), leaves: 0 };
        for record in archive.records.iter().filter_map(|signed| signed.verify(run).ok()) {
            match &record.body {
                Body::Ban(ban) => {
                    outlook.convicts.insert(ban.culprit);
                    outlook.needs.push((ban.round, record.height));
                }
                Body::Rewind(rewind) => outlook.needs.push((rewind.to, record.height)),
                _ => outlook.leaves += leaves(&record, sample, run),
            }
        }
        outlook
    }

    /// Whether a record at this height or later needs what a round began with.
    fn needs(&self, round: Round, height: Height) -> bool {
        self.needs.iter().any(|(of, until)| *of == round && *until >= height)
    }
}

/// Leaves that a record says are to be recomputed.
fn leaves(record: &Record, sample: Option<&Sample>, run: RunId) -> u64 {
    let Body::Freeze(freeze) = &record.body else { return 0 };
    let commits = freeze.commits.iter().filter_map(|signed| signed.verify(run).ok());
    let drawn = commits.filter(|commit| sample.is_none_or(|sample| sample.takes(commit.round, commit.slot)));
    drawn.map(|commit| u64::from(commit.leaves)).sum()
}

impl<'a> Replay<'a> {
    /// At the beginning of the run.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits.
    pub fn begin(archive: &'a Archive, plan: &Plan) -> Result<Self, Misuse> {
        let (manifest, dataset) = (archive.manifest.clone(), archive.dataset.clone());
        let mut arithmetic = Exact::new(plan.threads, plan.path)?;
        let state = initial(&manifest, &dataset, &mut arithmetic)?;
        Ok(Self {
            archive,
            plan: plan.clone(),
            outlook: Outlook::of(archive, plan.sample.as_ref()),
            ledger: Ledger::new(manifest.clone()),
            state,
            arithmetic,
            crew: Crew::new(manifest, dataset.clone(), plan.threads, plan.path)?,
            held: BTreeMap::new(),
            views: BTreeMap::new(),
            recomputed: 0,
            counted: 0,
            replayed: Replayed::default(),
        })
    }

    /// Leaves to recompute from the beginning to the end, at most.
    pub fn leaves(&self) -> u64 {
        self.outlook.leaves
    }

    /// The ledger as far as it was re-executed.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Contributions recomputed so far, of how many that counted.
    pub fn recomputed(&self) -> (u64, u64) {
        (self.recomputed, self.counted)
    }

    /// Leaves of the rounds that are over, to compare with [`Replay::leaves`].
    pub fn leaves_done(&self) -> u64 {
        let run = self.ledger.run();
        let over = self.archive.records.iter().take(self.ledger.height().index());
        let records = over.filter_map(|signed| signed.verify(run).ok());
        records.map(|record| leaves(&record, self.plan.sample.as_ref(), run)).sum()
    }

    /// Computes something with known bits.
    ///
    /// # Errors
    /// [`Misuse`] when a bit differs.
    pub fn self_test(&mut self) -> Result<(), Misuse> {
        self.arithmetic.self_test()
    }

    /// Re-executes up to the end of a round; `None` once the run is over. `told` is called after each leaf, on any
    /// thread.
    ///
    /// # Errors
    /// [`ReplayError`] at the first thing that differs.
    pub fn round(&mut self, told: &(dyn Fn() + Sync)) -> Result<Option<Round>, ReplayError> {
        let archive = self.archive;
        while let Some(signed) = archive.records.get(self.ledger.height().index()) {
            let record = self.take(signed)?;
            match &record.body {
                Body::Outcome(outcome) => {
                    self.outcome(outcome, told)?;
                    return Ok(Some(outcome.round));
                }
                Body::Ban(ban) => self.ban(ban)?,
                Body::Rewind(rewind) => self.rewind(rewind)?,
                _ => {}
            }
        }
        if self.ledger.stage() == Stage::Closed {
            return Ok(None);
        }
        Err(ReplayError::Wrong("the ledger ends before the run was closed".into()))
    }

    /// The state before the next round.
    pub fn into_state(self) -> State {
        self.state
    }

    /// What was found, at the end.
    pub fn finish(mut self) -> Replayed {
        let manifest = &self.archive.manifest;
        let windows = self.archive.dataset.held_out_windows(manifest.model.sequence, HELD_OUT_WINDOWS);
        self.replayed.root = self.state.root();
        self.replayed.held_out_loss =
            (!windows.is_empty()).then(|| self.arithmetic.evaluate(manifest, &self.state, &windows));
        self.replayed
    }

    /// How far it came, and the states that go with it. Between two rounds.
    pub fn progress(&self) -> (Progress, impl Iterator<Item = (Round, &State)>) {
        let bad = self.replayed.bad.iter();
        let progress = Progress {
            run: self.ledger.run(),
            sample: self.plan.sample,
            height: self.ledger.height(),
            head: self.ledger.head(),
            round: self.ledger.next_round(),
            held: self.held.keys().copied().collect(),
            recomputed: self.recomputed,
            bad: bad.map(|bad| (bad.round, bad.member, bad.factor.map(f64::to_bits))).collect(),
        };
        let newest = (self.ledger.next_round(), &self.state);
        (progress, self.held.iter().map(|(round, state)| (*round, state)).chain([newest]))
    }

    /// Goes to where an interrupted replay of the same archive and sample came; `load` gives the states that it kept.
    ///
    /// # Errors
    /// Why that is not possible, in words; the replay must then begin anew.
    pub fn skip(&mut self, progress: &Progress, load: &dyn Fn(Round) -> Option<State>) -> Result<(), String> {
        if progress.run != self.ledger.run() {
            return Err("it is of another run".into());
        }
        if progress.sample != self.plan.sample {
            return Err("it is of another share of the contributions".into());
        }
        let mut sealed: BTreeMap<Round, StateRoots> = BTreeMap::new();
        while self.ledger.height() < progress.height {
            let signed = self.archive.records.get(self.ledger.height().index());
            let signed = signed.ok_or("it goes on behind the end of this ledger")?;
            let record = self.take(signed).map_err(|error| error.to_string())?;
            if let Body::Outcome(outcome) = &record.body {
                self.account(outcome.round);
            }
            sealed.insert(self.ledger.next_round(), *self.ledger.state());
        }
        if self.ledger.head() != progress.head || self.ledger.next_round() != progress.round {
            return Err("it is of another ledger".into());
        }
        let checked = |round: Round| {
            let state = load(round).filter(|state| Some(&state.roots()) == sealed.get(&round));
            state.ok_or_else(|| format!("the state before round {round} is missing or not the sealed one"))
        };
        self.state = checked(progress.round)?;
        self.held = progress
            .held
            .iter()
            .map(|round| Ok((*round, checked(*round)?)))
            .collect::<Result<_, String>>()?;
        self.recomputed = progress.recomputed;
        let bad = progress.bad.iter().map(|(round, member, factor)| BadContribution {
            round: *round,
            member: *member,
            factor: factor.map(f64::from_bits),
        });
        self.replayed.bad = bad.collect();
        Ok(())
    }

    /// Moves the ledger past a record.
    fn take(&mut self, signed: &Signed<Record>) -> Result<Verified<Record>, ReplayError> {
        let at = format!("record {}", self.ledger.height());
        let record = self.ledger.apply(signed).map_err(wrong(&at))?;
        if let Body::Open(roots) = &record.body {
            if *roots != self.state.roots() {
                let (computed, sealed) = (self.state.root(), roots.root());
                let what = format!("{at}: the initial state is {computed}, sealed is {sealed}");
                return Err(ReplayError::Wrong(what));
            }
            self.hold();
        }
        if let Body::Outcome(outcome) = &record.body {
            let height = record.height;
            self.views.retain(|round, _| self.outlook.needs(*round, height));
            let view = self.ledger.round(outcome.round).filter(|_| self.outlook.needs(outcome.round, height));
            self.views.extend(view.map(|view| (outcome.round, view.clone())));
        }
        Ok(record)
    }

    /// A round as the ledger has it, or had it when it was over.
    fn view(&self, round: Round) -> Option<&RoundView> {
        self.ledger.round(round).or_else(|| self.views.get(&round))
    }

    /// Keeps the newest state if a later record needs it, and drops those that none needs any more.
    fn hold(&mut self) {
        let (round, height) = (self.ledger.next_round(), self.ledger.height());
        self.held.retain(|round, _| self.outlook.needs(*round, height));
        if self.outlook.needs(round, height) {
            self.held.insert(round, self.state.clone());
        }
    }

    fn outcome(&mut self, outcome: &Outcome, told: &(dyn Fn() + Sync)) -> Result<(), ReplayError> {
        let round = outcome.round;
        let view = self.ledger.round(round).cloned();
        let view = view.ok_or_else(|| ReplayError::Wrong(format!("round {round} is not open")))?;
        let update = self.update(&view, told)?;
        self.arithmetic.apply(&self.archive.manifest, &mut self.state, &update);
        let roots = self.state.roots();
        if roots != outcome.state {
            let (computed, sealed) = (roots.root(), outcome.state.root());
            let what = format!("round {round} gives state {computed}, sealed is {sealed}");
            return Err(ReplayError::Wrong(what));
        }
        self.account(round);
        self.hold();
        Ok(())
    }

    /// What the ledger alone says of a round that is over.
    fn account(&mut self, round: Round) {
        let Some(view) = self.ledger.round(round) else { return };
        for (slot, commitment) in view.commitments() {
            if view.counted(slot) {
                self.counted += 1;
                *self.replayed.leaves.entry(commitment.author).or_default() +=
                    u64::from(commitment.commit.leaves);
            }
        }
        self.replayed.losses.push(mean_loss(view));
    }

    /// The aggregate of a round: by the rule from all contributions, else the archived one, the drawn contributions
    /// checked.
    fn update(&mut self, view: &RoundView, told: &(dyn Fn() + Sync)) -> Result<Update, ReplayError> {
        let counted: Vec<Slot> =
            view.commitments().map(|(slot, _)| slot).filter(|slot| view.counted(*slot)).collect();
        let takes = |slot: &Slot| self.plan.sample.is_none_or(|sample| sample.takes(view.round(), *slot));
        let drawn: Vec<Slot> = counted.iter().copied().filter(takes).collect();
        let checked = self.contributions(view, None, &drawn, told)?;
        self.recomputed += drawn.len() as u64;
        let (update, factors) = if drawn.len() == counted.len() {
            self.reduced(view, &checked)?
        } else {
            (self.archived(view)?, Factors::new())
        };
        for slot in checked.bad.keys() {
            let member = view.member_at(*slot).unwrap_or(MemberId([0; 32]));
            let factor = factors.get(slot).map(|(sum, weight)| sum / weight);
            self.replayed.bad.push(BadContribution { round: view.round(), member, factor });
        }
        Ok(update)
    }

    /// Counted contributions: recomputed on the newest state or an earlier one, or convicts' exhibits where they are not
    /// what they should be.
    fn contributions(
        &mut self,
        view: &RoundView,
        state: Option<&State>,
        slots: &[Slot],
        told: &(dyn Fn() + Sync),
    ) -> Result<RecomputedRound, ReplayError> {
        let commitments: Vec<(Slot, &ledger::WeightedCommit)> =
            slots.iter().filter_map(|slot| Some((*slot, view.commitment(*slot)?))).collect();
        let commits: Vec<&Commit> = commitments.iter().map(|(_, commitment)| &commitment.commit).collect();
        let sums = self.crew.sums(state.unwrap_or(&self.state), &commits, told);
        let layout = self.ledger.layout().clone();
        let checked =
            spread(self.plan.threads, commits.into_iter().zip(sums).collect(), |(commit, (q, loss))| {
                let same = loss == commit.loss && Commitment::new(&layout, &q).root() == commit.root;
                (q, same)
            });
        let mut found = RecomputedRound::default();
        for ((slot, commitment), (q, same)) in commitments.into_iter().zip(checked) {
            let q = if same {
                q
            } else {
                let exhibit = self.exhibit(view, slot, &commitment.author)?;
                found.bad.insert(slot, exhibit.blocks);
                found.missing.extend(exhibit.missing);
                exhibit.q
            };
            found.sums.insert(slot, q);
        }
        Ok(found)
    }

    /// A convict's contribution that is not what the state and the text give.
    fn exhibit(
        &self,
        view: &RoundView,
        slot: Slot,
        who: &MemberId,
    ) -> Result<CountedContribution, ReplayError> {
        if !self.outlook.convicts.contains(who) {
            return Err(ReplayError::Wrong(format!(
                "round {}, slot {slot}: the contribution of {who} is not what the state and the text give, and it was never \
                 convicted",
                view.round()
            )));
        }
        exhibit(&self.archive.folder, self.ledger.layout(), view, slot)
    }

    /// The update of a round by the run's rule, and what the rule left of each slot.
    fn reduced(
        &self,
        view: &RoundView,
        RecomputedRound { sums: contributions, missing, .. }: &RecomputedRound,
    ) -> Result<(Update, Factors), ReplayError> {
        let layout = self.ledger.layout();
        let commitment = |slot: Slot| view.commitment(slot);
        let input =
            |slot: Slot, block: Block| contributions.get(&slot)?.get(layout.block(block)?.range.clone());
        let jobs: Vec<(Part, Block)> = result_blocks(view).collect();
        let blocks = spread(self.plan.threads, jobs.clone(), |(part, block)| {
            let inputs = view.inputs().get(part.index())?;
            reduce(&self.archive.manifest, layout, &[block], inputs, commitment, input)
        });
        let (mut update, mut factors) = (empty(layout), Factors::new());
        for ((part, block), reduced) in jobs.into_iter().zip(blocks) {
            let reduced = reduced.ok_or_else(|| differs(view, part))?;
            let values = reduced.values.first().ok_or_else(|| differs(view, part))?;
            put(&mut update, layout, block, values).ok_or_else(|| differs(view, part))?;
            let size = values.len() as f64;
            for (slot, factor) in reduced.factors {
                let (sum, weight) = factors.entry(slot).or_default();
                *sum += factor * size;
                *weight += size;
            }
        }
        self.put_kept_parts(view, missing, &mut update)?;
        self.check_results(view, &update, |result| self.wrong_part(view, result, &update))?;
        Ok((update, factors))
    }

    /// The values of the parts of convicts, and of those of which a convict's integers are missing, as they were kept: they
    /// counted, and may not be what the rule gives, or cannot be combined again.
    fn put_kept_parts(
        &self,
        view: &RoundView,
        missing: &BTreeSet<Part>,
        update: &mut Update,
    ) -> Result<(), ReplayError> {
        let layout = self.ledger.layout();
        for (plan, result) in view.parts().iter().zip(view.results().unwrap_or_default()) {
            let Some(result) = result else { continue };
            let convicted = view.signers(result.part).any(|signer| self.outlook.convicts.contains(&signer));
            if !convicted && !missing.contains(&result.part) {
                continue;
            }
            let (round, part) = (view.round(), result.part);
            let wrong = |why: &str| ReplayError::Wrong(format!("round {round}, part {part}: {why}"));
            let Some(kept) = reading::part_exhibit(&self.archive.folder, round, part)? else {
                if digest_of(layout, &plan.blocks, update) == Some(result.digest) {
                    continue;
                }
                return Err(wrong("its author was convicted, and the values are missing"));
            };
            let mut rest = kept.as_slice();
            for block in &plan.blocks {
                let length = layout.block(*block).map_or(0, |block| block.range.len());
                let (own, after) =
                    rest.split_at_checked(length).ok_or_else(|| wrong("the kept values are cut short"))?;
                put(update, layout, *block, own).ok_or_else(|| differs(view, part))?;
                rest = after;
            }
        }
        Ok(())
    }

    /// The aggregate that the archive keeps, which must be the sealed one.
    fn archived(&self, view: &RoundView) -> Result<Update, ReplayError> {
        let round = view.round();
        let kept = reading::aggregate(&self.archive.folder, round)?.ok_or_else(|| {
            ReplayError::Wrong(format!(
                "the aggregate of round {round} is not in updates/: to recompute only a share of the contributions, the \
                 others' sum must be there (muster host --keep-aggregates); without, replay everything"
            ))
        })?;
        let layout = self.ledger.layout();
        let mut update = empty(layout);
        for (part, block) in result_blocks(view) {
            let values = layout.block(block).and_then(|block| kept.values.get(block.range.clone()));
            let values = values.ok_or_else(|| differs(view, part))?;
            put(&mut update, layout, block, values).ok_or_else(|| differs(view, part))?;
        }
        self.check_results(view, &update, |result| differs(view, result.part))?;
        Ok(update)
    }

    /// Checks the values of every part against the sealed results; `otherwise` says what a difference means.
    fn check_results(
        &self,
        view: &RoundView,
        update: &Update,
        otherwise: impl Fn(&PartResult) -> ReplayError,
    ) -> Result<(), ReplayError> {
        let layout = self.ledger.layout();
        for (plan, result) in view.parts().iter().zip(view.results().unwrap_or_default()) {
            let Some(result) = result else { continue };
            if digest_of(layout, &plan.blocks, update) != Some(result.digest) {
                return Err(otherwise(result));
            }
        }
        Ok(())
    }

    /// Says of a part that counted and is not what the rule gives: whose it is, what that proves, and where the archive
    /// has the aggregate, which blocks are wrong.
    fn wrong_part(&self, view: &RoundView, result: &PartResult, right: &Update) -> ReplayError {
        let (layout, part) = (self.ledger.layout(), result.part);
        let plan = view.parts().get(part.index());
        let blocks = plan.map_or(&[][..], |plan| &plan.blocks);
        let kept = reading::aggregate(&self.archive.folder, view.round()).ok().flatten();
        let kept = kept.filter(|kept| digest_of(layout, blocks, kept) == Some(result.digest));
        let differs = |block: &&Block| {
            let range = layout.block(**block).map(|block| block.range.clone());
            let bits = |update: &Update| {
                let values = update.values.get(range.clone()?)?;
                Some(values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>())
            };
            kept.as_ref().is_some_and(|kept| bits(kept) != bits(right))
        };
        let wrong: Vec<String> = blocks.iter().filter(differs).map(|block| block.to_string()).collect();
        let wrong = match wrong.len() {
            0 => "which blocks are wrong only the aggregate would show (updates/)".to_owned(),
            _ => format!("wrong are the blocks {}", wrong.join(", ")),
        };
        let signers: Vec<String> = view.signers(part).map(|signer| format!("{signer:#}")).collect();
        ReplayError::Wrong(format!(
            "round {}, part {part}: the sealed result is not what the rule gives on the sealed inputs; {wrong}. It was \
             signed by {}: an aggregation mismatch, proved by that signature and what was recomputed here, of which \
             nobody was convicted in the run",
            view.round(),
            signers.join(" and by "),
        ))
    }

    /// Adds the contributions that a part was to be made of.
    fn bring_inputs(
        &mut self,
        part: &Reduction,
        round: Round,
        brought: &mut Brought,
    ) -> Result<(), ReplayError> {
        let result = part.result.verify(self.archive.manifest.run()).map_err(wrong("a result"))?;
        let (view, state) = (self.view(round).cloned(), self.held.get(&round).cloned());
        let (Some(view), Some(state)) = (view, state) else { return Ok(()) };
        let mut slots: Vec<Slot> = Vec::new();
        for slot in result.inputs.slots() {
            let Some(member) = view.member_at(slot) else { continue };
            // AUDIT-24: kept beside the evidence; who judges opens each block against the committed root.
            match reading::exhibited_blocks(&self.archive.folder, round, &member, result.part)? {
                Some(blocks) => {
                    brought.blocks.extend(blocks.into_iter().map(|data| ((member, data.block), data)));
                }
                None => slots.push(slot),
            }
        }
        let checked = self.contributions(&view, Some(&state), &slots, &|| ())?;
        for (slot, q) in checked.sums {
            let Some(member) = view.member_at(slot) else { continue };
            match checked.bad.get(&slot) {
                // No proof leads from the other blocks of such a one to its root.
                Some(blocks) if !blocks.is_empty() => {
                    let named = blocks.iter().map(|data| ((member, data.block), data.clone()));
                    brought.blocks.extend(named);
                }
                _ => drop(brought.contributions.insert((round, member), q)),
            }
        }
        Ok(())
    }

    /// Goes back to a state that was re-executed before.
    fn rewind(&mut self, rewind: &Rewind) -> Result<(), ReplayError> {
        let held = self.held.get(&rewind.to).filter(|state| state.roots() == rewind.state);
        let missing =
            || ReplayError::Wrong(format!("the state before round {} is not the sealed one", rewind.to));
        self.state = held.ok_or_else(missing)?.clone();
        self.hold();
        Ok(())
    }

    fn ban(&mut self, ban: &Ban) -> Result<(), ReplayError> {
        let bytes = reading::evidence(&self.archive.folder, &ban.evidence)?;
        let bytes =
            bytes.ok_or_else(|| ReplayError::Wrong(format!("the evidence {} is missing", ban.evidence)))?;
        let evidence: Evidence = decode(&bytes).map_err(wrong(&format!("evidence {}", ban.evidence)))?;
        if evidence.digest() != ban.evidence {
            return Err(ReplayError::Wrong(format!("the evidence {} has another hash", ban.evidence)));
        }
        let claim = claim(&self.archive.manifest, &evidence);
        let Claim { round, subject, .. } = claim.map_err(wrong(&format!("evidence {}", ban.evidence)))?;
        let mut brought = Brought { round: self.view(round).cloned(), ..Brought::default() };
        if let Evidence::Aggregation(part) = &evidence {
            self.bring_inputs(part, round, &mut brought)?;
        }
        // A steward that convicts without the integers (DUTY-10) may have had them later, and they prove more.
        let with = match reading::exhibit(&self.archive.folder, round, &subject)? {
            Some(q) => {
                let contributions = [((round, subject), q)].into_iter().chain(brought.contributions.clone());
                Some(Brought { contributions: contributions.collect(), ..brought.clone() })
            }
            None => None,
        };
        let mut judgements = Vec::new();
        for brought in with.into_iter().chain([brought]) {
            let judgement = self.judge(ban, &evidence, brought);
            if matches!(&judgement, Judgement::Guilty { culprit, finding, round, .. }
                if *culprit == ban.culprit && *finding == ban.finding && *round == ban.round)
            {
                return Ok(());
            }
            judgements.push(judgement);
        }
        Err(ReplayError::Wrong(format!(
            "the ban of {} does not follow from its evidence: {judgements:?}",
            ban.culprit
        )))
    }

    /// Re-executes what a ban rests on.
    fn judge(&mut self, ban: &Ban, evidence: &Evidence, brought: Brought) -> Judgement {
        let states = self.held.get(&ban.round).map(|state| (state.root(), state.clone().into()));
        let (manifest, dataset) = (&self.archive.manifest, self.archive.dataset.clone());
        let mut witness = Exhibited::new(states.into_iter().collect(), dataset, manifest, brought);
        judge(manifest, evidence, &mut witness, &mut self.arithmetic)
    }
}

/// What an aggregator signs for these values of its blocks.
fn digest_of(layout: &Layout, blocks: &[Block], update: &Update) -> Option<Digest> {
    let mut digest = PartDigest::default();
    for block in blocks {
        digest = digest.block(update.values.get(layout.block(*block)?.range.clone())?);
    }
    Some(digest.finish())
}

/// The blocks of the parts that have a result, with their parts.
fn result_blocks(view: &RoundView) -> impl Iterator<Item = (Part, Block)> + '_ {
    let results = view.results().unwrap_or_default().iter().flatten();
    let parts = results.filter_map(|result| Some((result.part, view.parts().get(result.part.index())?)));
    parts.flat_map(|(part, plan)| plan.blocks.iter().map(move |block| (part, *block)))
}

fn empty(layout: &Layout) -> Update {
    Update { values: vec![0.0; layout.parameters()], present: vec![false; layout.blocks().len()] }
}

/// Puts the values of a block into an update; `None` when they do not fit.
fn put(update: &mut Update, layout: &Layout, block: Block, values: &[f32]) -> Option<()> {
    let target = update.values.get_mut(layout.block(block)?.range.clone())?;
    if target.len() != values.len() {
        return None;
    }
    target.copy_from_slice(values);
    *update.present.get_mut(block.index())? = true;
    Some(())
}

fn differs(view: &RoundView, part: Part) -> ReplayError {
    ReplayError::Wrong(format!(
        "round {}, part {part}: the values at hand are not those of the sealed result",
        view.round()
    ))
}
