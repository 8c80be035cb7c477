//! The steward: the product's machine decides; here its records are kept, its board shown, its work done in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::audit::{Judgement, claim, judge, judge_reduction};
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::Profile;
use muster_core::messages::audit::{Finding, FindingKind, Recomputation};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body, Record};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{Notice, Request};
use muster_core::sign::{Signed, Verified};
use muster_core::state::Update;
use muster_replica::{Brought, Contributions};
use muster_roles::steward::accusation::Allegation;
use muster_roles::steward::exhibits::{Counted, OwedContribution, PartName};
use muster_roles::steward::hearing::{Bench, Matter, Patience, Ruling, hear};
use muster_roles::steward::past::{Found, PastRound};
use muster_roles::steward::{Bulletin, Question, Steward, StewardEffect, StewardInput, StewardSetup};

use super::clock::Event;
use super::report::{Conviction, WrongPart};
use super::{Part, Sim};

/// What the steward has on its disk besides the records.
#[derive(Default)]
pub(super) struct Disk {
    /// What it was told, and no record may hold yet, with the rounds in which that was.
    kept: Vec<(Round, Request)>,
    /// What bans rest on, by name.
    evidence: BTreeMap<Digest, Evidence>,
    /// Parts that are kept by value.
    parts: BTreeSet<PartName>,
}

impl Sim {
    /// Something reaches the steward. What it is asked changes its ledger or its docket only with a record or a notice.
    pub(super) fn hand(&mut self, input: StewardInput) {
        self.unchecked |= !matches!(input, StewardInput::Asked { .. });
        self.machine.handle(self.clock.now() - self.began, input);
        self.drain();
    }

    /// A request reaches the steward. A refusal is part of the run: late and repeated messages are dropped.
    pub(super) fn ask(&mut self, from: MemberId, request: Box<Request>) {
        self.questions += 1;
        let question = Question(self.questions);
        if let Some(number) = self.number(&from) {
            self.unanswered.insert(question, (number, request.clone()));
        }
        self.hand(StewardInput::Asked { question, from, request, date: 0 });
    }

    /// Does what the steward says, and has it look at its timers.
    pub(super) fn drain(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            self.unchecked |= matches!(effect, StewardEffect::Seal(..) | StewardEffect::Post(_));
            self.perform_effect(effect);
        }
        self.machine.poll_timeout().into_iter().for_each(|time| self.clock.tick_at(self.began + time));
    }

    /// Its process is killed now and then, and starts again from what it has on its disk: the records, what it was told and
    /// no record holds yet, and what bans rest on. Whoever is there finds it again. Returns whether it was killed.
    pub(super) fn restart_by_chance(&mut self) -> bool {
        let chance = self.plan.steward_crashes;
        // The disk has the newest sealed state, which the only replica here must not be ahead of.
        let sealed = self.replica.state().root() == self.ledger().state().root();
        if chance == 0 || !sealed || self.clock.draw(1_000_000) >= u64::from(chance) {
            return false;
        }
        self.clock.drop_work();
        self.applying.clear();
        self.results.clear();
        self.board.clear();
        for (number, request) in std::mem::take(&mut self.unanswered).into_values() {
            self.answered(number, request, None);
        }
        let ledger = Ledger::clone(&self.book.newest());
        let first = ledger.rounds().next().map(RoundView::round).unwrap_or_default();
        let bans = self.book.records().iter().filter_map(|record| match &record.body {
            Body::Ban(ban) if ban.effective > first => Some(ban.clone()),
            _ => None,
        });
        let bans = bans.map(|ban| (ban.clone(), self.disk.evidence.get(&ban.evidence).cloned())).collect();
        self.began = self.clock.now();
        self.report.restarts += 1;
        self.law.restarted();
        self.unchecked = true;
        self.machine = Steward::new(StewardSetup {
            ledger,
            identity: self.steward.clone(),
            roots: self.replica.roots().clone(),
            states: self.replica.kept_states().collect(),
            bans,
            kept: self.disk.kept.iter().map(|(_, request)| request.clone()).collect(),
        });
        self.nodes.iter_mut().for_each(|node| node.read = 0);
        self.watchers.iter_mut().for_each(super::Watcher::reread);
        let nodes = self.nodes.iter().filter(|node| node.alive).map(|node| node.identity.id());
        let there: Vec<MemberId> =
            nodes.chain(self.watchers.iter().map(|watcher| watcher.identity.id())).collect();
        there.into_iter().for_each(|member| self.clock.after(5, 40, Event::Back(member)));
        self.drain();
        true
    }

    /// What a convict contributed while it cheated is false, and has moved the aggregates as far as can be.
    pub(super) fn measured(&mut self, convict: MemberId) {
        let node = self.number(&convict).map(|number| &self.nodes[number]);
        let ledger = self.machine.ledger();
        let past = ledger.rounds().filter(|view| view.results().is_some()).filter_map(|view| {
            let slot = view.slot_of(&convict).filter(|slot| view.counted(*slot))?;
            view.commitment(slot)?;
            let bad = node.is_some_and(|node| node.was_bad(view.round()));
            let (found, harm) = if bad { (Found::False, Some(1.0)) } else { (Found::Right, None) };
            let (round, contribution) = (view.round(), Some(found));
            Some(PastRound { round, contribution, parts: Vec::new(), harm, wrong: Vec::new() })
        });
        let past = past.collect();
        self.law.measured(&convict);
        self.hand(StewardInput::Measured(convict, past));
    }

    fn perform_effect(&mut self, effect: StewardEffect) {
        match effect {
            StewardEffect::Seal(signed, record) => self.sealed(&signed, &record),
            StewardEffect::Post(notice) => self.posted(notice),
            StewardEffect::Apply(results) => {
                self.applying.push_back(results);
                self.clock.after(10, 20, Event::Applied);
            }
            StewardEffect::Hear(accusation, matter) => {
                self.clock.after(5, 40, Event::Hear(accusation, matter))
            }
            StewardEffect::Inspect(accusation, matter) => {
                self.clock.after(20, 50, Event::Inspect(accusation, matter));
            }
            StewardEffect::Exhibit(owed) => self.clock.after(5, 40, Event::Exhibit(owed)),
            StewardEffect::KeepParts { parts, .. } => {
                self.disk.parts.extend(parts.iter().map(|(round, part, _)| (*round, *part)));
                self.tell(StewardInput::PartsKept(parts, Vec::new()));
            }
            StewardEffect::DropParts(parts) => {
                parts.iter().for_each(|name| assert!(self.disk.parts.remove(name), "{name:?} was kept"));
            }
            StewardEffect::Measure(convict) => {
                self.law.measures(convict, self.machine.ledger());
                self.clock.after(self.plan.measures, 50, Event::Measure(convict));
            }
            StewardEffect::GoBack(rewind) => {
                let round = self.ledger().next_round();
                assert!(self.replica.rewind(&rewind.state, round).expect("memory"), "a state that is kept");
                self.report.rewinds += 1;
                let states = self.replica.kept_states().collect();
                self.tell(StewardInput::States(states));
            }
            StewardEffect::Keep(round, request) => self.disk.kept.push((round, *request)),
            StewardEffect::Prune(before) => self.disk.kept.retain(|(round, _)| *round >= before),
            StewardEffect::KeepEvidence(evidence, _) => {
                self.disk.evidence.insert(evidence.digest(), *evidence);
            }
            StewardEffect::Tell(news) => {
                self.report.dismissed += usize::from(matches!(*news, Bulletin::Dismissed { .. }))
            }
            StewardEffect::Halt(why) => panic!("seed {}: {why}", self.plan.seed),
            StewardEffect::Answer(question, response) => {
                if let Some((number, request)) = self.unanswered.remove(&question) {
                    self.answered(number, request, Some(response));
                }
            }
            // Everybody is where it says that it is.
            StewardEffect::DialBack(question, _) => self.tell(StewardInput::DialledBack(question, Ok(()))),
            StewardEffect::CheckDelivery(question, claimed) => {
                let shown = Box::new(claimed.check());
                self.tell(StewardInput::DeliveryChecked(question, shown));
            }
            StewardEffect::Read(question, ..) => self.tell(StewardInput::Served(question)),
            StewardEffect::Prefetch(result, _) => self.prefetch(*result),
            // Blocks that are where they are wanted.
            StewardEffect::Store(..) | StewardEffect::Archive => {}
        }
    }

    /// Tells the machine at once what came of an effect.
    fn tell(&mut self, input: StewardInput) {
        self.machine.handle(self.clock.now() - self.began, input);
    }

    /// Values are here at once, or nobody shows them for as long as the steward waits.
    fn prefetch(&mut self, result: PartResult) {
        let now = self.clock.now();
        if self.reduced.contains_key(&(result.round, result.part, result.digest)) {
            return self.machine.handle(now - self.began, StewardInput::Obtained(Box::new(result), true));
        }
        let timer = u64::from(self.manifest.timers.result);
        self.clock.at(now + timer, Event::Unavailable(Box::new(result)));
    }

    /// A record is sealed.
    fn sealed(&mut self, signed: &Signed<Record>, record: &Verified<Record>) {
        let now = self.clock.now();
        self.trace = self.trace.clone().value(&now).value(&record.head());
        if let Err(wrong) = self.law.sealed(record, &self.book.newest(), self.machine.docket()) {
            panic!("seed {}, after {now} ms: {wrong}", self.plan.seed);
        }
        self.book.add(signed);
        match &record.body {
            Body::Ban(ban) => self.convicted(ban),
            Body::Silence(_) => self.report.silences += 1,
            Body::Ready(_) => self.report.ready += 1,
            Body::Idle(idle) => {
                self.report.idles += 1;
                let own = |watcher: &super::Watcher| watcher.identity.id() == idle.verifier;
                let honest = |number: &usize| self.watchers[*number].is_honest();
                let number = self.watchers.iter().position(own).filter(honest);
                self.report.idled.extend(number);
            }
            Body::Outcome(outcome) => {
                self.note_cheats(outcome.round);
                self.results.clear();
                self.nodes.iter_mut().for_each(|node| node.read = 0);
                self.report.late_steps +=
                    outcome.steps.iter().filter(|step| step.round < outcome.round).count();
                self.forget(outcome.round);
                self.bring_latecomers(outcome.round.next());
            }
            _ => {}
        }
        (0..self.nodes.len()).for_each(|number| self.clock.after(5, 40, Event::Records(number)));
        self.wake_all();
    }

    fn convicted(&mut self, ban: &Ban) {
        self.report.opinions += ban.jury.len();
        let Some(node) = self.number(&ban.culprit) else { return self.verifier_banned(&ban.culprit) };
        let mut audited: Vec<Round> =
            self.asked.values().filter(|(asked, _)| *asked == node).map(|(_, round)| *round).collect();
        audited.sort_unstable();
        self.check_exhibits(ban, node);
        self.report.convictions.push(Conviction {
            node,
            deserved: self.nodes[node].player.cheats,
            round: ban.round,
            effective: ban.effective,
            finding: ban.finding,
            audited,
        });
    }

    /// Notes which parts of a round that is over count something false.
    fn note_cheats(&mut self, round: Round) {
        let ledger = self.book.newest();
        let Some(view) = ledger.round(round) else { return };
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.was_bad(round)) {
            let parts = Counted::of(&ledger, view, &node.identity.id()).parts;
            self.false_parts.insert((round, number), parts);
        }
    }

    /// AUDIT-24 and C7: of a convict's false contributions those that nobody remembers any more are kept by value, except the
    /// ones that were forgotten before the audit that convicts began to last.
    ///
    /// # Panics
    /// When one is neither remembered nor kept.
    fn check_exhibits(&mut self, ban: &Ban, node: usize) {
        // A steward that was started again knows no cases of before, and one that was idle may still find somebody guilty.
        let steady = self.report.restarts == 0 && self.report.idles == 0;
        if self.manifest.profile != Profile::Exact || !steady {
            return;
        }
        let kept = self.manifest.retention.contributions.max(1);
        let oldest = Round((ban.round.0 + self.manifest.lasting_rounds() + 1).saturating_sub(kept));
        let ledger = self.machine.ledger();
        let contributions = self.false_parts.range((oldest, 0)..).filter(|((_, number), _)| *number == node);
        for ((round, _), parts) in contributions.filter(|((round, _), _)| ledger.round(*round).is_none()) {
            let lacks = parts.iter().find(|part| !self.disk.parts.contains(&(*round, **part)));
            assert!(
                lacks.is_none(),
                "seed {}: node {node} is banned for round {}; {lacks:?} of round {round} counts it, and is neither \
                 remembered nor kept",
                self.plan.seed,
                ban.round
            );
            self.report.kept_by_value += parts.len();
        }
    }

    fn verifier_banned(&mut self, culprit: &MemberId) {
        let friend = self.watchers.iter().any(|watcher| watcher.identity.id() == *culprit && watcher.friend);
        let (friends, others) = &mut self.report.verifiers_banned;
        *(if friend { friends } else { others }) += 1;
    }

    /// Drops what is older than what anybody keeps.
    fn forget(&mut self, round: Round) {
        let oldest = Round(round.0.saturating_sub(self.manifest.retention.contributions + 2));
        self.contributions = self.contributions.split_off(&(oldest, MemberId([0; 32])));
        self.reduced = self.reduced.split_off(&(oldest, Part(0), Default::default()));
    }

    pub(super) fn number(&self, member: &MemberId) -> Option<usize> {
        self.nodes.iter().position(|node| node.identity.id() == *member)
    }

    /// Something is on the board.
    fn posted(&mut self, notice: Notice) {
        let request = match &notice {
            Notice::Result(signed) => {
                self.results.push(signed.clone());
                return (0..self.nodes.len())
                    .for_each(|number| self.clock.after(5, 40, Event::Shown(number)));
            }
            Notice::Request(signed) => {
                let request = signed.verify(self.run).ok();
                let asked = request.and_then(|request| Some((self.number(&request.target)?, request.round)));
                self.report.audits += 1;
                if let Some(asked) = asked {
                    self.asked.insert(signed.digest(), asked);
                }
                Some(signed.digest())
            }
            Notice::Results(signed) => signed.verify(self.run).ok().map(|results| results.request),
            Notice::Recheck(_) => {
                self.report.rechecks += 1;
                None
            }
            _ => None,
        };
        if let Some((target, _)) = request.and_then(|request| self.asked.get(&request)) {
            self.clock.after(5, 40, Event::Asked(*target, Box::new(notice.clone())));
        }
        self.board.push(notice);
        self.wake_all();
    }

    /// Applies the results that the steward has chosen.
    pub(super) fn apply(&mut self) {
        let Some(results) = self.applying.pop_front() else { return };
        let view = self.ledger().current().expect("results have a round").clone();
        let mut update = Update::empty(&self.layout, view.open_shards(&self.layout));
        let mut missing = Vec::new();
        for signed in results.iter().flatten() {
            let result = signed.verify(self.run).expect("checked by the conductor");
            let Some(values) = self.reduced.get(&(view.round(), result.part, result.digest)) else {
                missing.push(result.part);
                continue;
            };
            if let Some(blocks) = self.distorted.get(&result.digest) {
                let signer = signed.claimed_signer();
                let node = self.nodes.iter().position(|node| node.identity.id() == signer);
                let node = node.expect("an aggregator is a node");
                self.report.wrong_parts.push(WrongPart { round: view.round(), node, blocks: *blocks });
            }
            for (block, values) in view.parts()[result.part.index()].blocks.iter().zip(values) {
                update.put(&self.layout, *block, values).expect("a block of a shard that takes a step");
            }
        }
        if !missing.is_empty() {
            return self.hand(StewardInput::Applied(Err(missing), self.replica.kept_states().collect()));
        }
        self.aggregates.insert(view.round(), Arc::new(update));
        let steps = view.shard_steps();
        let update = Update::of_steps(&self.layout, &steps, |round| self.aggregates.get(&round).cloned());
        let update = Update { behind: view.is_behind(), ..update.expect("what waits is kept") };
        let roots = self.replica.apply([Ok(update)], None).expect("memory");
        let lag = self.ledger().manifest().model.lag();
        self.aggregates.retain(|round, _| round.0 + lag > view.round().0);
        self.report.losses.extend(self.replica.held_out_loss());
        self.hand(StewardInput::Applied(Ok(roots), self.replica.kept_states().collect()));
    }

    /// The steward has examined an accusation.
    pub(super) fn heard(&mut self, accusation: Box<Allegation>, matter: &Matter) {
        let ruling = self.ruling(matter);
        self.hand(StewardInput::Heard(accusation, Box::new(ruling)));
    }

    /// The steward has reduced a part again.
    pub(super) fn inspect(&mut self, accusation: Box<Allegation>, matter: &Matter) {
        let judgement = self.ruling(matter).judgement;
        let right = matches!(judgement, Judgement::NotGuilty(_));
        if let Evidence::Aggregation(part) = &accusation.evidence {
            let result = part.result.verify(self.run).expect("checked by the conductor").into_inner();
            self.report.inspections.push((result, right));
        }
        self.hand(StewardInput::Inspected(accusation, Box::new(judgement)));
    }

    /// The steward has fetched a contribution for its exhibits, or nobody had it.
    pub(super) fn exhibit(&mut self, owed: OwedContribution) {
        let there = self.to_be_had(owed.round, &owed.member, true).is_some();
        let kept = there.then_some(()).ok_or_else(|| "nobody shows it".to_owned());
        self.hand(StewardInput::Exhibited(owed, kept));
    }

    fn ruling(&mut self, matter: &Matter) -> Ruling {
        match hear(
            matter,
            &mut Seat { sim: self, wanted: matter.evidence.clone(), brought: Brought::default() },
        ) {
            Ok(ruling) => ruling,
            Err(never) => match never {},
        }
    }

    /// The contributions that evidence is about.
    fn brought(&self, evidence: &Evidence) -> Brought {
        let mut brought = Brought::default();
        let Ok(claim) = claim(&self.manifest, evidence) else { return brought };
        match evidence {
            Evidence::Audit(_) | Evidence::Verdict(_) => {
                let key = (claim.round, claim.subject);
                brought.contributions = self
                    .to_be_had(claim.round, &claim.subject, true)
                    .and_then(|q| Some((key, self.packed(q)?)))
                    .into_iter()
                    .collect();
            }
            Evidence::Aggregation(_) => {
                brought.contributions = self.counted(claim.round);
                brought.round = self.ledger().round(claim.round).cloned();
            }
            _ => {}
        }
        brought
    }

    /// Integers as they travel; none of a vector of another length, whose blocks nobody could prove.
    pub(super) fn packed(&self, q: &[i32]) -> Option<Arc<PackedContribution>> {
        let fits = q.len() == self.layout.coefficients();
        fits.then(|| Arc::new(PackedContribution::new(&self.layout, q)))
    }

    fn counted(&self, round: Round) -> Contributions {
        let of_round = (round, MemberId([0; 32]))..=(round, MemberId([255; 32]));
        self.contributions.range(of_round).filter_map(|(key, q)| Some((*key, self.packed(q)?))).collect()
    }

    /// A whole contribution, unless its author does not let members, or the steward, have what it has not delivered.
    pub(super) fn to_be_had(&self, round: Round, member: &MemberId, steward: bool) -> Option<&Vec<i32>> {
        let author = self.nodes.iter().find(|node| node.identity.id() == *member);
        let serves = author.is_none_or(|node| node.player.conduct.serves(round, steward));
        self.contributions.get(&(round, *member)).filter(|_| serves).map(|q| &**q)
    }

    /// Has a verifier accuse the aggregators of all parts of a round; how many that are.
    ///
    /// # Panics
    /// When the round is forgotten.
    pub fn slander_parts(&mut self, watcher: usize, round: Round) -> usize {
        let view = self.ledger().round(round).expect("a round that is remembered");
        let parts = (0..view.parts().len() as u16).filter_map(|part| {
            let signed = view.signed_result(Part(part))?;
            let result = signed.verify(self.run).ok()?;
            view.reduction(&result, signed).map(Evidence::Aggregation)
        });
        let accused: Vec<Evidence> = parts.collect();
        let (count, accuser) = (accused.len(), self.watchers[watcher].identity.id());
        for evidence in accused {
            self.clock.after(5, 40, Event::Ask(accuser, Box::new(Request::Accuse(evidence))));
        }
        count
    }

    /// Has a verifier say of everything that it is to audit in a round that it is wrong; how much that is.
    ///
    /// # Panics
    /// When the round is not frozen, or forgotten.
    pub fn slander(&mut self, watcher: usize, round: Round) -> usize {
        let view = self.ledger().round(round).expect("a round that is remembered");
        let freeze = view.freeze_digest().expect("a frozen round");
        let accused: Vec<MemberId> = view.commitments().map(|(_, commitment)| commitment.author).collect();
        let finding = Finding::Guilty(FindingKind::TotalMismatch);
        for target in &accused {
            let words = Recomputation { round, freeze, target: *target, finding };
            let identity = &self.watchers[watcher].identity;
            let signed = identity.sign(self.run, &words);
            self.clock.after(5, 40, Event::notice(identity.id(), Notice::Recomputation(signed)));
        }
        accused.len()
    }
}

/// The bench of the simulated steward: whatever is available is there at once.
struct Seat<'a> {
    sim: &'a mut Sim,
    wanted: Evidence,
    brought: Brought,
}

impl Bench for Seat<'_> {
    type Failure = std::convert::Infallible;

    fn bring(&mut self, _: Patience) -> bool {
        self.brought = self.sim.brought(&self.wanted);
        !self.brought.contributions.is_empty()
    }

    fn judge(&mut self, evidence: &Evidence) -> Result<Judgement, Self::Failure> {
        let Sim { manifest, replica, arithmetic, .. } = &mut *self.sim;
        let mut witness = replica.witness(self.brought.clone());
        Ok(match evidence {
            Evidence::Aggregation(part) => judge_reduction(manifest, part, &mut witness),
            evidence => judge(manifest, evidence, &mut witness, arithmetic),
        })
    }

    fn contribution(&self) -> Option<Vec<i32>> {
        self.brought.contributions.values().next()?.whole(&self.sim.layout)
    }

    fn keep_inputs(&mut self) -> Result<(), Self::Failure> {
        Ok(())
    }
}
