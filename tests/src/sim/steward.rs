//! The steward: seals, keeps the board, applies.

use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::messages::evidence::{Equivocation, Evidence, TwoResults};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::round::{Commit, PartResult};
use muster_core::messages::wire::Notice;
use muster_core::round::Output;
use muster_core::sign::Signed;
use muster_core::state::Update;

use super::clock::Event;
use super::report::{Conviction, WrongPart};
use super::{Part, Sim};

impl Sim {
    /// Does what the conductor asks for, and what follows from the time.
    pub(super) fn drain(&mut self) {
        self.show_results();
        loop {
            while let Some(output) = self.next_output() {
                match output {
                    Output::Seal(body) => self.seal(body),
                    Output::Apply(results) => {
                        self.applying.push_back(results);
                        self.clock.after(10, 20, Event::Applied);
                    }
                    Output::Inspect(signed) => self.clock.after(20, 50, Event::Inspect(signed)),
                }
            }
            if self.conductor.ledger().stage() != Stage::Auditing || !self.may_close() {
                break;
            }
            self.conductor.propose(Body::Close(self.conductor.ledger().state().root()));
        }
        let audits = self.docket.timeout(self.conductor.ledger());
        let timers = self.conductor.poll_timeout().into_iter().chain(audits);
        timers.for_each(|time| self.clock.tick_at(time));
    }

    pub(super) fn tick(&mut self) {
        let now = self.clock.now();
        self.conductor.tick(now);
        let silences = self.docket.silences(now, self.conductor.ledger());
        silences.into_iter().for_each(|body| self.conductor.propose(body));
    }

    /// What the conductor asks for, once it knows which cases are open.
    fn next_output(&mut self) -> Option<Output> {
        let now = self.clock.now();
        let idles = self.docket.idles(now, self.conductor.ledger());
        idles.into_iter().for_each(|body| self.conductor.propose(body));
        let oldest = self.docket.oldest_open(self.conductor.ledger());
        self.conductor.cases(now, oldest);
        self.examine_charges();
        self.conductor.poll_output()
    }

    fn seal(&mut self, mut body: Body) {
        if let Body::Ban(ban) = &mut body {
            ban.effective = self.ledger().first_round_without();
        }
        let now = self.clock.now();
        let record = self.ledger().record(body);
        let signed = self.steward.sign(self.run, &record);
        // A refusal is part of the run: something else was sealed since it was proposed.
        if self.conductor.sealed(now, &signed).is_err() {
            return;
        }
        self.trace = self.trace.clone().value(&now).value(&record.head());
        self.book.add(&signed);
        self.law.sealed(now, &record);
        match &record.body {
            Body::Ban(ban) => self.convicted(ban),
            Body::Silence(_) => self.report.silences += 1,
            Body::Idle(idle) => {
                self.report.idles += 1;
                let own = |watcher: &super::Watcher| watcher.identity.id() == idle.verifier;
                let honest = |number: &usize| self.watchers[*number].is_honest();
                let number = self.watchers.iter().position(own).filter(honest);
                self.report.idled.extend(number);
            }
            // A member that had taken in a Reassign could not take in what was shown just before it.
            Body::Inputs(_) => self.shown.clear(),
            Body::Outcome(outcome) => {
                self.shown.clear();
                self.results.clear();
                self.nodes.iter_mut().for_each(|node| node.read = 0);
                self.forget(outcome.round);
            }
            _ => {}
        }
        (0..self.nodes.len()).for_each(|number| self.clock.after(5, 40, Event::Records(number)));
        self.wake_all();
    }

    fn convicted(&mut self, ban: &Ban) {
        let Some(node) = self.number(&ban.culprit) else { return self.verifier_banned(&ban.culprit) };
        let mut audited: Vec<Round> =
            self.asked.values().filter(|(asked, _)| *asked == node).map(|(_, round)| *round).collect();
        audited.sort_unstable();
        self.report.convictions.push(Conviction {
            node,
            deserved: self.nodes[node].player.cheats,
            round: ban.round,
            effective: ban.effective,
            finding: ban.finding,
            audited,
        });
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

    pub(super) fn committed(&mut self, signed: Signed<Commit>) {
        let first = self.first_commitment(&signed).filter(|first| *first != signed);
        if let Some(first) = first {
            let evidence = Evidence::Equivocation(Equivocation { first, second: signed });
            self.accuse(self.steward.id(), evidence);
            return;
        }
        // A refusal is part of the run.
        let _ = self.conductor.commit(self.clock.now(), signed);
    }

    /// The commitment of the same member and round that is held or frozen.
    fn first_commitment(&self, second: &Signed<Commit>) -> Option<Signed<Commit>> {
        let said = second.verify(self.run).ok()?;
        let of_round = |first: &Signed<Commit>| {
            first.claimed_signer() == said.author()
                && first.verify(self.run).is_ok_and(|first| first.round == said.round)
        };
        let held = self.conductor.held_commit(said.slot).filter(|held| of_round(held)).cloned();
        let frozen = self.ledger().round(said.round).and_then(|view| view.freeze()?.verify(self.run).ok());
        let frozen = frozen.and_then(|record| match &record.body {
            Body::Freeze(freeze) => freeze.commits.iter().find(|commit| of_round(commit)).cloned(),
            _ => None,
        });
        held.or(frozen)
    }

    /// An aggregator's word reaches the steward, which shows the first one on a part to everybody.
    pub(super) fn result(&mut self, signed: Signed<PartResult>) {
        let Ok(said) = signed.verify(self.run) else { return };
        let held = self.conductor.held_result(said.part, &said.author()).cloned();
        let contradicts = |first: &Signed<PartResult>| {
            first.verify(self.run).is_ok_and(|first| {
                let place = |result: &PartResult| (result.round, result.part, result.attempt);
                first.author() == said.author() && place(&first) == place(&said) && *first != *said
            })
        };
        if let Some(first) = held.filter(contradicts) {
            self.conductor.contest(said.part, &said.author());
            let evidence = Evidence::Results(TwoResults { first, second: signed });
            self.accuse(self.steward.id(), evidence);
            return;
        }
        // A refusal is part of the run.
        let _ = self.conductor.result(self.clock.now(), signed);
    }

    /// Shows what would be sealed of each part, where that is not what was shown before.
    fn show_results(&mut self) {
        let standing = self.conductor.standing().map(|(part, digest, signed)| (part, digest, signed.clone()));
        for (part, _, signed) in standing.collect::<Vec<_>>() {
            let name = signed.digest();
            if self.shown.insert(part, name) != Some(name) {
                (0..self.nodes.len()).for_each(|number| self.clock.after(5, 40, Event::Shown(number)));
                self.results.push(signed);
            }
        }
    }

    /// A step of an audit reaches the board.
    pub(super) fn post(&mut self, notice: Notice) {
        if let Notice::Leave(signed) = notice {
            return self.conductor.propose(Body::Leave(signed));
        }
        if let Notice::Return(signed) = notice {
            return self.conductor.propose(Body::Return(signed));
        }
        let now = self.clock.now();
        // A refusal is part of the run: somebody did not keep the order.
        let Ok(body) = self.docket.post(now, self.conductor.ledger(), &notice) else { return };
        body.into_iter().for_each(|body| self.conductor.propose(body));
        self.docket.credits().into_iter().for_each(|credit| self.conductor.credit(credit));
        let request = match &notice {
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

    /// Applies the results that the conductor has chosen.
    pub(super) fn apply(&mut self) {
        let now = self.clock.now();
        let Some(results) = self.applying.pop_front() else { return };
        let view = self.conductor.ledger().current().expect("results have a round");
        let blocks = self.layout.blocks();
        let mut update =
            Update { values: vec![0.0; self.layout.parameters()], present: vec![false; blocks.len()] };
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
                update.values[blocks[block.index()].range.clone()].copy_from_slice(values);
                update.present[block.index()] = true;
            }
        }
        if !missing.is_empty() {
            return self.conductor.applied(now, Err(missing));
        }
        let roots = self.replica.apply(&update);
        self.report.losses.extend(self.replica.held_out_loss());
        self.conductor.applied(now, Ok(roots));
    }

    /// Whether nothing is open, and everything that anybody can judge was judged, or has had its time.
    fn may_close(&self) -> bool {
        let open = self.docket.oldest_open(self.conductor.ledger()).is_some();
        !open && self.accused == 0 && (self.is_judged() || self.conductor.overdue())
    }

    /// Whether every counted contribution of the last rounds was judged.
    fn is_judged(&self) -> bool {
        let ledger = self.conductor.ledger();
        let last = ledger.rounds().filter(|view| ledger.in_final_audit(view.round()) && view.echoed());
        let mut counted = last.flat_map(|view| {
            let counted = view.commitments().filter(|(slot, _)| view.counted(*slot));
            counted.map(|(_, commitment)| (view.round(), commitment.author))
        });
        let judged = |(round, member): (Round, MemberId)| {
            self.docket.has_passed(ledger, round, &member) || banned(ledger, &member)
        };
        let verified = self.watchers.iter().any(|watcher| ledger.is_active_verifier(&watcher.identity.id()));
        !verified || counted.all(judged)
    }
}

pub(super) fn banned(ledger: &Ledger, member: &MemberId) -> bool {
    ledger.member(member).is_some_and(|member| member.standing == Standing::Banned)
}
