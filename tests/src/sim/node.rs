//! A node: its duties in a round, and its answers to audits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::audit::probe;
use muster_core::codec::List;
use muster_core::contribution::{Commitment, open_block};
use muster_core::ids::{Block, Digest, Height, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage, Standing};
use muster_core::messages::enrol::{Leave, Return};
use muster_core::messages::round::{Bitmap, Commit, Delivered, Echo, PartResult, Receipt};
use muster_core::messages::wire::{Notice, Request};
use muster_core::reduction::{objects, reduce};
use muster_core::round::{Check, Checks, Duties, Duty};
use muster_core::sign::{Identity, Signed};
use muster_node::join::{Answers, Asked, Inputs, LeafSum, Spares, Summed, Work};

use super::clock::Event;
use super::plan::{Behaviour, Player, Temper, node_identity};
use super::report::Left;
use super::{Plan, Sim};

/// Virtual milliseconds that a leaf takes.
pub(super) const LEAF: u64 = 50;

/// A node.
pub(super) struct Node {
    pub(super) identity: Identity,
    pub(super) player: Player,
    pub(super) ledger: Arc<Ledger>,
    pub(super) alive: bool,
    duties: Duties,
    checks: Checks,
    held: BTreeMap<Round, Held>,
    answers: Answers,
    /// Rounds after which it was asked whether it stays.
    stayed: Round,
    /// Height at which it last said that it is back.
    back: Height,
    /// Results of the round that it has read.
    pub(super) read: usize,
}

/// What it committed to in a round.
struct Held {
    commit: Commit,
    leaves: Vec<LeafSum>,
    /// Bad leaves in it.
    bad: u32,
}

impl Node {
    pub(super) fn new(plan: &Plan, number: usize, ledger: &Arc<Ledger>) -> Self {
        let identity = node_identity(number);
        Self {
            duties: Duties::new(identity.id()),
            checks: Checks::new(identity.id()),
            identity,
            player: plan.players[number].clone(),
            ledger: ledger.clone(),
            alive: true,
            held: BTreeMap::new(),
            answers: Answers::new(ledger.run(), plan.secret(4, number)),
            stayed: Round(0),
            back: Height(0),
            read: 0,
        }
    }

    /// Whether it contributed something false to a round.
    pub(super) fn was_bad(&self, round: Round) -> bool {
        self.held.get(&round).is_some_and(|held| held.bad > 0)
    }

    fn is(&self, behaviour: Behaviour) -> bool {
        self.player.behaviour == behaviour
    }
}

impl Sim {
    /// A node takes in all records that there are.
    pub(super) fn catch_up(&mut self, number: usize) {
        while self.nodes[number].alive {
            let node = &mut self.nodes[number];
            let Some(next) = self.book.after(&node.ledger) else { break };
            node.ledger = next;
            let at = node.ledger.current().map(RoundView::round);
            if let Behaviour::Dies(round, stage) = node.player.behaviour
                && at == Some(round)
                && node.ledger.stage() == stage
            {
                node.alive = false;
                let id = node.identity.id();
                self.clock.after(200, 100, Event::Gone(id));
            }
        }
        self.leave_if_it_wants(number);
        self.come_back(number);
        let node = &mut self.nodes[number];
        let duties = if node.alive { node.duties.due(&node.ledger) } else { Vec::new() };
        duties.into_iter().for_each(|duty| self.perform(number, duty));
        self.look(number);
    }

    /// Results are on the board.
    pub(super) fn shown(&mut self, number: usize) {
        // The board's news begin with the records that were sealed before.
        self.catch_up(number);
        let node = &mut self.nodes[number];
        for signed in &self.results[node.read..] {
            // A refusal is part of the run: the phase is over.
            let _ = node.checks.saw(&node.ledger, signed);
        }
        node.read = self.results.len();
        self.look(number);
    }

    /// A node compares the results that it has seen with its own contribution.
    fn look(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if !node.alive || node.is(Behaviour::NeverChecks) {
            return;
        }
        let Some(check) = node.checks.due(&node.ledger) else { return };
        let objections = self.objections(number, &check);
        let signed = self.nodes[number].identity.sign(self.run, &check.word(&objections));
        let me = self.nodes[number].identity.id();
        self.clock.after(5, 40, Event::Ask(me, Box::new(Request::Checked(signed))));
    }

    /// The blocks that a node objects to, by part.
    fn objections(&self, number: usize, check: &Check) -> BTreeMap<Part, Vec<Block>> {
        let node = &self.nodes[number];
        let (Some(view), Some(held)) = (node.ledger.round(check.round), node.held.get(&check.round)) else {
            return BTreeMap::new();
        };
        let Some(q) = self.contributions.get(&(check.round, node.identity.id())) else {
            return BTreeMap::new();
        };
        let far = |block: &Block, values: &[f32]| {
            let range = self.layout.block(*block).map(|block| block.range.clone());
            let own = range.and_then(|range| q.get(range));
            node.is(Behaviour::Objects) || own.is_some_and(|q| objects(q, held.commit.leaves, values))
        };
        let of_part = |(part, digest): &(Part, Digest)| {
            let values = self.reduced.get(&(check.round, *part, *digest))?;
            let blocks = view.parts().get(part.index())?.blocks.iter().zip(values);
            let far: Vec<Block> =
                blocks.filter(|(block, values)| far(block, values)).map(|(block, _)| *block).collect();
            (!far.is_empty()).then_some((*part, far))
        };
        check.parts.iter().filter_map(of_part).collect()
    }

    /// A node that does not stay leaves for good, once the round is over.
    fn leave_if_it_wants(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let next = node.ledger.next_round();
        if !node.alive || next <= node.stayed {
            return;
        }
        node.stayed = next;
        if !node.player.conduct.stays(Round(next.0 - 1)) {
            node.alive = false;
            let leave = Leave { height: node.ledger.height() };
            let signed = node.identity.sign(self.run, &leave);
            let id = node.identity.id();
            self.clock.after(5, 40, Event::notice(id, Notice::Leave(signed)));
            self.clock.after(200, 100, Event::Gone(id));
        }
    }

    /// One that holds others up on purpose returns as soon as the ledger takes it, and everyone where many fail, or all.
    fn come_back(&mut self, number: usize) {
        let returns = !self.plan.tempers.is_empty();
        let node = &mut self.nodes[number];
        let stubborn = matches!(
            node.player.behaviour,
            Behaviour::Overclaims | Behaviour::Stalls | Behaviour::StallsParts
        ) || !node.player.conduct.echoes(node.ledger.next_round());
        let (id, gathering) = (node.identity.id(), node.ledger.stage() == Stage::Gathering);
        let gone = |standing| match standing {
            Standing::Away => true,
            Standing::Silent(_) => gathering,
            _ => false,
        };
        let back = node.alive && (returns || stubborn || gathering);
        let away = node.ledger.member(&id).filter(|member| back && gone(member.standing));
        let Some(member) = away.filter(|member| member.since < node.ledger.height()) else { return };
        if node.back > member.since || node.ledger.is_barred(member.barred) {
            return;
        }
        node.back = node.ledger.height();
        let back = Return { height: node.ledger.height(), addresses: member.addresses.clone() };
        let signed = node.identity.sign(self.run, &back);
        self.clock.after(5, 40, Event::notice(id, Notice::Return(signed)));
    }

    fn perform(&mut self, number: usize, duty: Duty) {
        let node = &self.nodes[number];
        let view = node.ledger.current().expect("a duty has a round").clone();
        match duty {
            Duty::Compute { slot, quota, .. } if !node.is(Behaviour::Mute) => {
                self.contribute(number, &view, slot, quota);
            }
            Duty::Echo { round, freeze } if node.player.conduct.echoes(round) => {
                let signed = node.identity.sign(self.run, &Echo { round, freeze });
                let me = node.identity.id();
                self.clock.after(5, 40, Event::notice(me, Notice::Echo(signed)));
            }
            Duty::Deliver { attempt, parts, .. }
                if !node.is(Behaviour::Withholds) && !node.is(Behaviour::Stalls) =>
            {
                if let Some(parts) = node.player.conduct.deliver(view.round(), parts) {
                    self.deliver(number, &view, attempt, &parts);
                }
            }
            Duty::Reduce { part, attempt, inputs, .. } => {
                self.reduce(number, &view, (part, attempt), inputs);
            }
            _ => {}
        }
    }

    fn contribute(&mut self, number: usize, view: &RoundView, slot: Slot, quota: u32) {
        let root = view.state().root();
        let Some(state) = self.replica.state_at(&root) else { return };
        let work = Work {
            manifest: self.manifest.clone(),
            dataset: self.dataset.clone(),
            round: view.round(),
            seed: view.seed(),
            root,
            state,
            slot,
            seats: view.seats().len() as u16,
            quota,
            seating: view.seats().to_vec(),
            parts: view.parts().iter().map(|plan| plan.blocks.clone()).collect(),
            deadline: Instant::now() + Duration::from_secs(3600),
            spares: Spares::default(),
        };
        let conduct = self.nodes[number].player.conduct.clone();
        let summed = conduct.contribute(&work, &mut self.arithmetic);
        let bad = if self.nodes[number].player.cheats { self.bad_leaves(&work, &summed) } else { 0 };
        let claims = u32::from(self.nodes[number].is(Behaviour::Overclaims)) * quota;
        let commit = Commit {
            round: view.round(),
            head: view.head(),
            state: root,
            slot,
            seats: work.seats,
            leaves: summed.leaves.len() as u32 + claims,
            profile: self.manifest.profile,
            loss: summed.loss,
            root: Commitment::new(&self.layout, &summed.q).root(),
        };
        let node = &mut self.nodes[number];
        let me = node.identity.id();
        let said = conduct.commit(commit.clone());
        let ask = |commit| Event::Ask(me, Box::new(Request::Commit(node.identity.sign(self.run, commit))));
        let signed = said.iter().map(ask);
        self.clock.after_all(50 + LEAF * u64::from(commit.leaves), 300, signed.collect());
        let commit = said.into_iter().next().unwrap_or(commit);
        node.held.insert(view.round(), Held { commit, leaves: summed.leaves, bad });
        let keep = self.manifest.retention.contributions as usize;
        while node.held.len() > keep {
            node.held.pop_first();
        }
        self.contributions.insert((view.round(), me), Arc::new(summed.q));
    }

    /// Leaves that are not what they should be; all where only the sum is false.
    fn bad_leaves(&mut self, work: &Work, summed: &Summed) -> u32 {
        let honest = work.sum(&mut self.arithmetic);
        let differ = summed.leaves.iter().zip(&honest.leaves).filter(|(said, right)| said != right).count();
        let own = Summed::of(summed.leaves.clone());
        let false_sum = own.q != summed.q || own.loss != summed.loss;
        if false_sum { summed.leaves.len() as u32 } else { differ as u32 }
    }

    fn deliver(&mut self, number: usize, view: &RoundView, attempt: u8, parts: &[(Part, MemberId)]) {
        let me = self.nodes[number].identity.id();
        let Some(q) = self.contributions.get(&(view.round(), me)).cloned() else { return };
        let tree = Commitment::new(&self.layout, &q);
        let give = |part: Part, keeper: &MemberId| {
            let blocks = &view.parts().get(part.index())?.blocks;
            let keeps = self.takes_in(view, &me, (&tree, q.as_slice()), blocks);
            let keeper = self.keeper(keeper, number)?;
            let receipt = Receipt { round: view.round(), part, attempt, sender: me, root: tree.root() };
            keeps.then(|| (keeper.id(), keeper.sign(self.run, &receipt)))
        };
        let mut given: BTreeMap<Part, BTreeMap<MemberId, Signed<Receipt>>> = BTreeMap::new();
        for (part, keeper) in parts {
            given.entry(*part).or_default().extend(give(*part, keeper));
        }
        let kept = |part: Part, given: &BTreeMap<MemberId, _>| {
            view.is_kept(part, &me, &given.keys().copied().collect::<Vec<_>>())
        };
        let mut relayed = 0;
        for (part, given) in &mut given {
            if !kept(*part, given) {
                // ROUND-24: what an aggregator does not take, the steward does.
                given.extend(give(*part, &self.steward.id()));
                relayed += 1;
            }
        }
        given.retain(|part, given| kept(*part, given));
        let receipts = given.into_values().flat_map(BTreeMap::into_values).collect();
        self.relayed += relayed;
        let receipts = List::new(receipts).expect("bounded by parts");
        let delivered = Delivered { round: view.round(), attempt, receipts };
        let signed = self.nodes[number].identity.sign(self.run, &delivered);
        // ROUND-5: after its echo has arrived.
        self.clock.after(45, 75, Event::Ask(me, Box::new(Request::Delivered(signed))));
    }

    /// Whether all blocks of a part are proved against the frozen commitment, as its keeper checks.
    fn takes_in(
        &self,
        view: &RoundView,
        sender: &MemberId,
        (tree, q): (&Commitment, &[i32]),
        blocks: &[Block],
    ) -> bool {
        let slot = view.slot_of(sender).and_then(|slot| view.commitment(slot));
        let Some(root) = slot.map(|commitment| commitment.commit.root) else { return false };
        blocks.iter().all(|block| {
            let data = tree.block(&self.layout, q, *block);
            data.is_some_and(|data| open_block(&self.layout, &root, &data).is_ok())
        })
    }

    fn keeper(&self, id: &MemberId, sender: usize) -> Option<&Identity> {
        let round = self.ledger().current().map(RoundView::round).unwrap_or_default();
        let from = self.nodes[sender].identity.id();
        let takes = |node: &&Node| {
            node.alive && !node.is(Behaviour::Refuses(sender)) && node.player.conduct.takes_in(round, &from)
        };
        let node = self.nodes.iter().find(|node| node.identity.id() == *id).filter(takes);
        let node = node.map(|node| &node.identity);
        node.or((*id == self.steward.id()).then_some(&self.steward))
    }

    fn reduce(&mut self, number: usize, view: &RoundView, (part, attempt): (Part, u8), inputs: Bitmap) {
        let Some(plan) = view.parts().get(part.index()) else { return };
        let commitment = |slot| view.commitment(slot);
        let input = |slot: Slot, block: Block| -> Option<&[i32]> {
            let q = self.contributions.get(&(view.round(), view.member_at(slot)?))?;
            q.get(self.layout.block(block)?.range.clone())
        };
        let rule =
            |inputs: &Bitmap| reduce(&self.manifest, &self.layout, &plan.blocks, inputs, commitment, input);
        let right = rule(&inputs).expect("an aggregator holds what was sealed");
        let round = view.round();
        let conduct = self.nodes[number].player.conduct.clone();
        let says = conduct.reduce(&Inputs { round, sealed: inputs, rule: &rule });
        let size: usize = right.values.iter().map(Vec::len).sum();
        let first = view.aggregators_in(part, attempt).next().and_then(|slot| view.member_at(slot));
        let told = first == Some(self.nodes[number].identity.id());
        for (slot, factor) in right.factors.iter().filter(|_| told) {
            self.leave(view, *slot, factor * size as f64 / self.layout.parameters() as f64);
        }
        let freeze = view.freeze_digest().expect("inputs follow a freeze");
        let mut said = Vec::new();
        for reduced in says {
            let digest = reduced.digest;
            if digest != right.digest {
                let blocks = reduced.values.iter().zip(&right.values).filter(|(said, is)| said != is);
                self.distorted.insert(digest, blocks.count());
            }
            self.reduced.insert((round, part, digest), reduced.values);
            let result = PartResult { round, part, attempt, freeze, inputs, digest };
            let identity = &self.nodes[number].identity;
            said.push(Event::notice(identity.id(), Notice::Result(identity.sign(self.run, &result))));
        }
        self.clock.after_all(20, 100, said);
    }

    /// Writes down what the rule left of a bad contribution in one part, as a share of the whole vector.
    fn leave(&mut self, view: &RoundView, slot: Slot, share: f64) {
        let Some(member) = view.member_at(slot) else { return };
        let Some(node) = self.nodes.iter().position(|node| node.identity.id() == member) else { return };
        let bad = self.nodes[node].held.get(&view.round()).map_or(0, |held| held.bad);
        if bad == 0 {
            return;
        }
        let round = view.round();
        let mut before = self.report.left.iter_mut().rev().take_while(|left| left.round == round);
        match before.find(|left| left.node == node) {
            Some(left) => left.factor += share,
            None => self.report.left.push(Left { round, node, leaves: bad, factor: share }),
        }
    }

    /// A step of an audit reaches the audited node.
    pub(super) fn answer(&mut self, number: usize, notice: Notice) {
        self.catch_up(number);
        let node = &self.nodes[number];
        if !node.alive {
            return;
        }
        let (conduct, answers) = (&node.player.conduct, &node.answers);
        let answer = match notice {
            Notice::Request(signed) => {
                let Ok(request) = node.ledger.check_request(&signed) else { return };
                let Some(held) = node.held.get(&request.round) else { return };
                let key = (request.round, request.target);
                let Some(q) = self.contributions.get(&key) else { return };
                let probe = probe(&self.manifest, &signed, &request);
                let rows = Answers::rows(&probe, &held.leaves, 1).expect("bounded by the quota");
                let asked = Asked { freeze: request.freeze, probe: &probe, commit: &held.commit, q };
                let Some(rows) = conduct.seal(&asked, rows) else { return };
                Notice::Table(answers.seal(&node.identity, &signed, &request, held.commit.root, rows))
            }
            Notice::Results(signed) => match answers.open(&node.identity, &signed, &**conduct) {
                Some(opening) => Notice::Opening(opening),
                None => return,
            },
            _ => return,
        };
        let (me, temper) = (node.identity.id(), node.player.temper);
        self.say_with(me, temper, (10, 60), answer);
    }

    /// Says something at the steward's, as reliably as somebody is.
    pub(super) fn say_with(
        &mut self,
        from: MemberId,
        temper: Temper,
        (least, spread): (u64, u64),
        notice: Notice,
    ) {
        let round = self.ledger().next_round();
        let mute = temper.mute_from.is_some_and(|from| round >= from);
        if mute || temper.loses > 0 && self.clock.draw(1_000_000) < u64::from(temper.loses) {
            return;
        }
        let late = if temper.dawdles > 0 { self.clock.draw(temper.dawdles) } else { 0 };
        self.clock.after(least + late, spread, Event::notice(from, notice));
    }
}
