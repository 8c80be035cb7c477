//! A node: the product's machine decides; here it computes, delivers and speaks in virtual time, and fails as its plan has it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::audit::probe;
use muster_core::codec::{List, Text};
use muster_core::contribution::Commitment;
use muster_core::ids::{Block, Digest, MemberId, Part, Round, ShardId, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::messages::audit::{AuditRequest, TableOpening};
use muster_core::messages::enrol::Addresses;
use muster_core::messages::round::{Bitmap, Commit, Receipt};
use muster_core::messages::wire::{Notice, PutBlocks, Request, Response};
use muster_core::reduction::{SealedInputs, reduce};
use muster_core::round::Check;
use muster_core::sign::{Identity, Signed};
use muster_member::{AggregatorView, Assignment, AuditedContribution, LeafSum, Spares, Summed, rows_of};
use muster_roles::keeper::Delivery;
use muster_roles::node::{
    Computed, MembershipEnd, Node as Machine, NodeEffect, NodeInput, NodeSetup, Parcel, PartTask, Promise,
    commit_to,
};

use super::clock::Event;
use super::experts::Fetch;
use super::plan::{Behaviour, Player, Temper, node_identity};
use super::report::Left;
use super::{Plan, Sim};

/// Virtual milliseconds that a leaf takes.
pub(super) const LEAF: u64 = 50;
/// Virtual milliseconds that a member that dawdles lets others wait with a step of an audit: fewer than make it silent while
/// rounds go on as they do here.
const DAWDLES: u64 = 4_000;

/// A node.
pub(super) struct Node {
    pub(super) identity: Arc<Identity>,
    pub(super) player: Player,
    pub(super) machine: Machine,
    pub(super) alive: bool,
    held: BTreeMap<Round, Held>,
    /// Freezes that it has said it saw.
    echoed: BTreeMap<Round, Digest>,
    /// Rounds after which it was asked whether it stays.
    stayed: Round,
    /// Results of the round that it has read.
    pub(super) read: usize,
    /// The row that it fetches, or has fetched.
    pub(super) fetch: Option<Fetch>,
}

/// What it committed to in a round.
struct Held {
    commit: Commit,
    /// What it signed and said of it, which is on its disk before anybody hears it.
    signed: Vec<Signed<Commit>>,
    tree: Commitment,
    leaves: Vec<LeafSum>,
    /// Virtual milliseconds that it took.
    time: u64,
    /// Bad leaves in it.
    bad: u32,
}

/// Where a node says that it can be dialled.
pub(super) fn addresses(number: usize) -> Addresses {
    List::new(vec![Text::new(format!("sim:{number}")).expect("short")]).expect("one")
}

impl Node {
    pub(super) fn new(plan: &Plan, number: usize, ledger: &Arc<Ledger>) -> Self {
        let identity = Arc::new(node_identity(number));
        let machine = machine(plan, number, identity.clone(), ledger, Vec::new());
        let player = plan.players[number].clone();
        let (held, echoed, stayed) = (BTreeMap::new(), BTreeMap::new(), Round(0));
        let alive = player.joins.is_none();
        Self { identity, player, machine, alive, held, echoed, stayed, read: 0, fetch: None }
    }

    /// Whether it contributed something false to a round.
    pub(super) fn was_bad(&self, round: Round) -> bool {
        self.held.get(&round).is_some_and(|held| held.bad > 0)
    }

    /// For how long it lets an audit of a round wait on purpose.
    fn dawdles(&self, round: Round) -> u64 {
        if self.player.conduct.dawdles(round) { DAWDLES } else { 0 }
    }

    fn is(&self, behaviour: Behaviour) -> bool {
        self.player.behaviour == behaviour
    }

    /// Whether it says nothing of the results of a round.
    fn is_silent_on(&self, round: Round) -> bool {
        self.is(Behaviour::NeverChecks) || self.is(Behaviour::ChecksSeldom) && round.0.is_multiple_of(2)
    }
}

/// A process that has said nothing yet, and what an earlier one committed to.
pub(super) fn machine(
    plan: &Plan,
    number: usize,
    identity: Arc<Identity>,
    ledger: &Arc<Ledger>,
    committed: Vec<Signed<Commit>>,
) -> Machine {
    let (secret, addresses) = (plan.secret(4, number), addresses(number));
    let engagement = Default::default();
    Machine::new(NodeSetup { ledger: ledger.clone(), identity, addresses, engagement, secret, committed })
}

impl Sim {
    /// A node's process is killed now and then, and starts again from what it has on its disk: the records, what it committed
    /// to and echoed, contributions with their tables, and the secret of its salts. It reads the board once more.
    fn restart_node_by_chance(&mut self, number: usize) {
        let chance = self.nodes[number].player.temper.crashes;
        if chance == 0 || self.clock.draw(1_000_000) >= u64::from(chance) {
            return;
        }
        self.report.node_restarts += 1;
        self.unanswered.retain(|_, (asker, _)| *asker != number);
        let node = &mut self.nodes[number];
        let ledger = node.machine.ledger().clone();
        let committed = node.held.values().flat_map(|held| held.signed.clone()).collect();
        node.machine = machine(&self.plan, number, node.identity.clone(), &ledger, committed);
        node.read = 0;
        let (identity, asked) = (node.identity.id(), &self.asked);
        let of_audit = |notice: &&Notice| {
            let request = match notice {
                Notice::Request(signed) => Some(signed.digest()),
                Notice::Results(signed) => signed.verify(self.run).ok().map(|results| results.request),
                _ => None,
            };
            request.and_then(|request| asked.get(&request)).is_some_and(|(target, _)| *target == number)
        };
        let again: Vec<Event> = self
            .board
            .iter()
            .filter(of_audit)
            .map(|notice| Event::Asked(number, Box::new(notice.clone())))
            .collect();
        self.clock.after_all(5, 40, again);
        self.clock.after(5, 40, Event::Shown(number));
        self.clock.after(5, 40, Event::Back(identity));
    }

    /// A node takes in all records that there are.
    pub(super) fn catch_up(&mut self, number: usize) {
        if !self.nodes[number].alive {
            return;
        }
        if self.book.after(self.nodes[number].machine.ledger()).is_some() {
            self.restart_node_by_chance(number);
        }
        let node = &mut self.nodes[number];
        let (before, mut ledger) = (node.machine.ledger().height(), node.machine.ledger().clone());
        while let Some(next) = self.book.after(&ledger) {
            ledger = next;
            let at = ledger.current().map(RoundView::round);
            if let Behaviour::Dies(round, stage) = node.player.behaviour
                && at == Some(round)
                && ledger.stage() == stage
            {
                node.alive = false;
                let id = node.identity.id();
                return self.clock.after(200, 100, Event::Gone(id));
            }
        }
        let (now, next) = (self.clock.now(), ledger.next_round());
        let sealed = before.index()..ledger.height().index();
        let complete = self.has_its_row(number, &ledger);
        let node = &mut self.nodes[number];
        node.machine.handle(now, NodeInput::Followed { ledger, in_step: true, complete });
        for record in &self.book.records()[sealed] {
            node.machine.handle(now, NodeInput::Sealed(Box::new(record.clone().into_inner())));
        }
        for round in (node.stayed.0..next.0).map(Round) {
            node.machine.handle(now, NodeInput::Applied(round));
            if !node.player.conduct.stays(round) {
                node.machine.handle(now, NodeInput::Leave);
            }
        }
        node.stayed = node.stayed.max(next);
        self.act(number);
    }

    /// Results are on the board.
    pub(super) fn shown(&mut self, number: usize) {
        // The board's news begin with the records that were sealed before.
        self.catch_up(number);
        let (now, node) = (self.clock.now(), &mut self.nodes[number]);
        for signed in &self.results[node.read..] {
            node.machine.handle(now, NodeInput::Notice(Box::new(Notice::Result(signed.clone()))));
        }
        node.read = self.results.len();
        self.act(number);
    }

    /// A step of an audit reaches the audited node.
    pub(super) fn answer(&mut self, number: usize, notice: Notice) {
        self.catch_up(number);
        self.tell_node(number, NodeInput::Notice(Box::new(notice)));
        self.act(number);
    }

    /// A node learns what the steward has answered; it is time to do something about it when it has news.
    pub(super) fn answered(&mut self, number: usize, request: Box<Request>, answer: Option<Response>) {
        let answer = answer.filter(|answer| !matches!(answer, Response::Refused(_)));
        self.tell_node(number, NodeInput::Told(request, answer));
    }

    fn tell_node(&mut self, number: usize, input: NodeInput) {
        self.nodes[number].machine.handle(self.clock.now(), input);
    }

    /// Does what a node's machine says, unless the node is dead.
    fn act(&mut self, number: usize) {
        while self.nodes[number].alive {
            let Some(effect) = self.nodes[number].machine.poll_effect() else { return };
            self.perform(number, effect);
        }
    }

    fn perform(&mut self, number: usize, effect: NodeEffect) {
        let node = &self.nodes[number];
        let done = match effect {
            NodeEffect::Compute { round, slot, quota } if !node.is(Behaviour::Mute) => {
                self.contribute(number, round, slot, quota)
            }
            NodeEffect::WriteEcho(round, freeze) => {
                // ROUND-2: what was written down once is said, whatever a process that was started again has seen.
                let said = node.player.conduct.echoes(round);
                let said = said.then(|| *self.nodes[number].echoed.entry(round).or_insert(freeze));
                Some(NodeInput::EchoWritten(round, said))
            }
            NodeEffect::Prepare { round, attempt, parts }
                if !node.is(Behaviour::Withholds) && !node.is(Behaviour::Stalls) =>
            {
                let held = node.held.contains_key(&round);
                let parts = if held { node.player.conduct.deliver(round, parts) } else { Some(Vec::new()) };
                parts.map(|parts| NodeInput::Prepared { round, attempt, parts })
            }
            NodeEffect::Bring(parcel) => {
                let receipt = self.receipt(number, &parcel);
                self.relayed += usize::from(parcel.relayed);
                Some(NodeInput::Brought(parcel, receipt))
            }
            NodeEffect::Reduce(task) => {
                let digests = self.reduce(number, &task);
                digests.map(|digests| NodeInput::Reduced(task, digests))
            }
            NodeEffect::Compare(check) if !node.is_silent_on(check.round) => {
                // ROUND-20: of what is unavailable nothing can be said, and that keeps nobody from saying the rest.
                let is_here = |(part, digest): &(Part, Digest)| {
                    self.reduced.contains_key(&(check.round, *part, *digest))
                };
                let parts: Vec<_> = check.parts.iter().copied().filter(is_here).collect();
                let check = Check { parts, ..check };
                let objections = self.objections(number, &check);
                (!check.parts.is_empty()).then_some(NodeInput::Compared(check, objections))
            }
            NodeEffect::MakeRows(request) => self.rows(number, request),
            NodeEffect::Recall(promise) => Some(self.recalled(promise)),
            NodeEffect::Open(round, opening) => return self.open_table(number, round, *opening),
            NodeEffect::Say(requests) => return self.say_all(number, requests),
            NodeEffect::End(MembershipEnd::Convicted(_, why)) => {
                panic!("seed {}: the steward broke a promise: {why}", self.plan.seed)
            }
            // Faults, and what has no place in a simulation: disks, and people.
            _ => None,
        };
        done.into_iter().for_each(|input| self.tell_node(number, input));
    }

    /// Has what a node says arrive at the steward.
    fn say_all(&mut self, number: usize, requests: Vec<Request>) {
        let (me, temper) = (self.id(number), self.nodes[number].player.temper);
        let (least, spread) = match requests.first() {
            Some(Request::Commit(commit)) => {
                let commit = commit.verify(self.run).expect("its own").into_inner();
                (self.nodes[number].held[&commit.round].time, 300)
            }
            // ROUND-5: after its echo has arrived.
            Some(Request::Delivered(_)) => (45, 75),
            Some(Request::Notice(Notice::Result(_))) => (20, 100),
            Some(Request::Notice(Notice::Table(table))) => {
                let round = table.verify(self.run).ok().and_then(|table| self.asked.get(&table.request));
                let dawdles = round.map_or(0, |(_, round)| self.nodes[number].dawdles(*round));
                return self.say_with(me, temper, 10 + dawdles, 60, Notice::Table(table.clone()));
            }
            Some(Request::Notice(Notice::Return(_))) if !self.returns(number) => {
                let refused = requests.into_iter().map(|request| NodeInput::Told(Box::new(request), None));
                return refused.into_iter().for_each(|input| self.tell_node(number, input));
            }
            _ => (5, 40),
        };
        let ask = |request: &Request| Event::Ask(me, Box::new(request.clone()));
        self.clock.after_all(least, spread, requests.iter().map(ask).collect());
        for request in requests {
            match request {
                // Whatever follows arrives later.
                Request::Notice(Notice::Echo(_)) => {
                    self.tell_node(number, NodeInput::Told(Box::new(request), None));
                }
                Request::Notice(Notice::Leave(_)) => {
                    self.nodes[number].alive = false;
                    self.clock.after(200, 100, Event::Gone(me));
                }
                _ => {}
            }
        }
    }

    /// Whether a node that is away wants to be back: one that holds others up on purpose as soon as the ledger takes it, and
    /// everyone where many fail, or all.
    fn returns(&self, number: usize) -> bool {
        let node = &self.nodes[number];
        let ledger = node.machine.ledger();
        let stubborn = matches!(
            node.player.behaviour,
            Behaviour::Overclaims | Behaviour::Stalls | Behaviour::StallsParts | Behaviour::HidesValues
        ) || !node.player.conduct.echoes(ledger.next_round());
        stubborn || !self.plan.tempers.is_empty() || ledger.stage() == Stage::Gathering
    }

    /// The blocks that a node objects to, by part.
    fn objections(&self, number: usize, check: &Check) -> BTreeMap<Part, Vec<Block>> {
        let node = &self.nodes[number];
        let (Some(view), Some(held)) =
            (node.machine.ledger().round(check.round), node.held.get(&check.round))
        else {
            return BTreeMap::new();
        };
        let Some(q) = self.contributions.get(&(check.round, node.identity.id())) else {
            return BTreeMap::new();
        };
        if node.is(Behaviour::Objects) {
            let all = check.parts.iter().map(|(part, _)| (*part, view.parts()[part.index()].blocks.clone()));
            return all.collect();
        }
        let ledger = node.machine.ledger();
        let own = |block| q.get(ledger.layout().block(block)?.range.clone()).map(<[i32]>::to_vec);
        check.objections(ledger, &held.commit, own, |part, block, digest| {
            let place = view.parts().get(part.index())?.blocks.binary_search(&block).ok()?;
            self.reduced.get(&(check.round, part, *digest))?.get(place)
        })
    }

    fn contribute(&mut self, number: usize, round: Round, slot: Slot, quota: u32) -> Option<NodeInput> {
        if let Some(held) = self.nodes[number].held.get(&round) {
            return Some(NodeInput::Committed(held.signed.clone()));
        }
        let ledger = self.nodes[number].machine.ledger().clone();
        let view = ledger.round(round)?;
        let root = view.base().root();
        let path: Vec<ShardId> = self.layout.path(view.row_of(slot)).collect();
        let state = self.replica.state_at(&root)?.shards(&path)?;
        let work = Assignment {
            manifest: self.manifest.clone(),
            dataset: self.dataset.clone(),
            round: view.round(),
            seed: view.seed(),
            root,
            state,
            slot,
            seats: view.seats().len() as u16,
            route: view.route(slot),
            quota,
            seating: view.seats().to_vec(),
            parts: view.parts().iter().map(|plan| plan.blocks.clone()).collect(),
            deadline: Instant::now() + Duration::from_secs(3600),
            stop: Arc::default(),
            spares: Spares::default(),
            scratch: None,
        };
        let conduct = self.nodes[number].player.conduct.clone();
        let summed = conduct.contribute(&work, &mut self.arithmetic);
        let bad = if self.nodes[number].player.cheats { self.bad_leaves(&work, &summed) } else { 0 };
        let claims = u32::from(self.nodes[number].is(Behaviour::Overclaims)) * quota;
        let tree = Commitment::new(&self.layout, &summed.q);
        let leaves = summed.leaves.len() as u32 + claims;
        let computed = Computed { leaves, loss: summed.loss, root: tree.root() };
        let commit = commit_to(&ledger, round, slot, computed)?;
        let node = &mut self.nodes[number];
        let time = 50 + LEAF * u64::from(commit.leaves);
        let said = conduct.commit(commit.clone());
        let signed: Vec<_> = said.iter().map(|commit| node.identity.sign(self.run, commit)).collect();
        let commit = said.into_iter().next().unwrap_or(commit);
        let held = Held { commit, signed: signed.clone(), tree, leaves: summed.leaves, time, bad };
        node.held.insert(round, held);
        let keep = self.manifest.retention.contributions as usize;
        while node.held.len() > keep {
            node.held.pop_first();
        }
        while node.echoed.len() > keep {
            node.echoed.pop_first();
        }
        self.contributions.insert((round, node.identity.id()), Arc::new(summed.q));
        Some(NodeInput::Committed(signed))
    }

    /// Leaves that are not what they should be; all where only the sum is false.
    fn bad_leaves(&mut self, work: &Assignment, summed: &Summed) -> u32 {
        let honest = work.sum(&mut self.arithmetic);
        let differ = summed.leaves.iter().zip(&honest.leaves).filter(|(said, right)| said != right).count();
        let own = Summed::of(summed.leaves.clone());
        let false_sum = own.q != summed.q || own.loss != summed.loss;
        if false_sum { summed.leaves.len() as u32 } else { differ as u32 }
    }

    /// What the keeper of a parcel signs, if it is there and takes it.
    fn receipt(&self, number: usize, parcel: &Parcel) -> Option<Signed<Receipt>> {
        let Parcel { round, attempt, part, keeper, .. } = *parcel;
        let node = &self.nodes[number];
        let sender = node.identity.id();
        let (view, held) = (node.machine.ledger().round(round)?, node.held.get(&round)?);
        let q = self.contributions.get(&(round, sender))?;
        let (name, keeper) = (keeper, self.keeper(&keeper, number)?);
        let blocks = view.parts().get(part.index())?.blocks.iter();
        let blocks: Option<Vec<_>> = blocks.map(|block| held.tree.block(&self.layout, q, *block)).collect();
        let put = PutBlocks { round, attempt, blocks: List::new(blocks?).ok()? };
        let taken = Delivery::check(&self.layout, view, &name, &sender, put).ok()?;
        Some(keeper.sign(self.run, &taken.receipt))
    }

    fn keeper(&self, id: &MemberId, sender: usize) -> Option<&Arc<Identity>> {
        let round = self.ledger().current().map(RoundView::round).unwrap_or_default();
        let from = self.nodes[sender].identity.id();
        let takes = |node: &&Node| {
            node.alive && !node.is(Behaviour::Refuses(sender)) && node.player.conduct.takes_in(round, &from)
        };
        let node = self.nodes.iter().find(|node| node.identity.id() == *id).filter(takes);
        let node = node.map(|node| &node.identity);
        node.or((*id == self.steward.id()).then_some(&self.steward))
    }

    /// Reduces a part; the digests that its aggregator signs.
    fn reduce(&mut self, number: usize, task: &PartTask) -> Option<Vec<Digest>> {
        let PartTask { round, part, attempt, inputs } = *task;
        let ledger = self.nodes[number].machine.ledger().clone();
        let view = ledger.round(round)?;
        let plan = view.parts().get(part.index())?;
        let commitment = |slot| view.commitment(slot);
        let input = |slot: Slot, block: Block| -> Option<&[i32]> {
            let q = self.contributions.get(&(round, view.member_at(slot)?))?;
            q.get(self.layout.block(block)?.range.clone())
        };
        let freeze = view.freeze_digest()?;
        let rule = |slots: &Bitmap| {
            let sealed = SealedInputs { freeze, slots };
            reduce(&self.manifest, &self.layout, &plan.blocks, &sealed, commitment, input)
        };
        let right = rule(&inputs).expect("an aggregator holds what was sealed");
        let conduct = self.nodes[number].player.conduct.clone();
        let says = conduct.reduce(&AggregatorView { round, shard: plan.shard, sealed: inputs, rule: &rule });
        let size: usize = right.values.iter().map(Vec::len).sum();
        let first = view.aggregators_in(part, attempt).next().and_then(|slot| view.member_at(slot));
        let told = first == Some(self.nodes[number].identity.id());
        for (slot, factor) in right.factors.iter().filter(|_| told) {
            self.leave(view, *slot, factor * size as f64 / self.layout.parameters() as f64);
        }
        let mut said = Vec::new();
        for reduced in says {
            let digest = reduced.digest;
            if digest != right.digest {
                let blocks = reduced.values.iter().zip(&right.values).filter(|(said, is)| said != is);
                self.distorted.insert(digest, blocks.count());
            }
            if !self.nodes[number].is(Behaviour::HidesValues) {
                self.reduced.insert((round, part, digest), reduced.values);
            }
            said.push(digest);
        }
        Some(said)
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

    /// The rows that an audit of a node asks for.
    fn rows(&self, number: usize, signed: Box<Signed<AuditRequest>>) -> Option<NodeInput> {
        let node = &self.nodes[number];
        let request = signed.verify(self.run).ok()?;
        let held = node.held.get(&request.round)?;
        let q = self.contributions.get(&(request.round, request.target))?;
        let probe = probe(&self.manifest, &signed, &request);
        let rows = rows_of(&probe, &held.leaves, 1).expect("bounded by the quota");
        let sketch = probe.sketch(q);
        let (freeze, commit) = (request.freeze, &held.commit);
        let asked = AuditedContribution { freeze, probe: &probe, commit, sketch: &sketch };
        let rows = node.player.conduct.seal(&asked, rows)?;
        Some(NodeInput::Rows { request: signed, root: held.commit.root, rows })
    }

    /// The records that a promise of the steward's is held against.
    fn recalled(&self, promise: Box<Promise>) -> NodeInput {
        let inputs = self.book.newest_of(|body| promise.is_settled_by(body));
        let reassign = self.book.newest_of(|body| promise.follows(body));
        NodeInput::Recalled { promise, inputs, reassign }
    }

    /// A node opens a table, or what it says is one.
    fn open_table(&mut self, number: usize, round: Round, opening: TableOpening) {
        let node = &self.nodes[number];
        let TableOpening { request, results, salt, rows } = opening;
        let Some(rows) = node.player.conduct.open(round, rows) else { return };
        let opening = node.identity.sign(self.run, &TableOpening { request, results, salt, rows });
        let (me, temper, dawdles) = (node.identity.id(), node.player.temper, node.dawdles(round));
        self.say_with(me, temper, 10 + dawdles, 60, Notice::Opening(opening));
    }

    /// Says something at the steward's, as reliably as somebody is.
    pub(super) fn say_with(
        &mut self,
        from: MemberId,
        temper: Temper,
        least: u64,
        spread: u64,
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
