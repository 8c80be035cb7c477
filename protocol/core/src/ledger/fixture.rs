//! A small run whose records are sealed one by one, for tests.

use std::sync::Arc;

use super::Ledger;
use crate::codec::{List, Text};
use crate::coins::{CoinKind, CoinTerms, CoinTree};
use crate::error::Reject;
use crate::ids::{Digest, MemberId, Part, Round, ShardId, Slot};
use crate::manifest::fixture::{mixture, tiny};
use crate::manifest::{Family, Manifest};
use crate::messages::audit::{AuditRequest, Duty};
use crate::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use crate::messages::record::{Body, Credit, Freeze, Inputs, Outcome, Record};
use crate::messages::round::{Bitmap, Commit, Echo, PartResult};
use crate::sign::{Identity, Signed};
use crate::state::{ShardRoots, StateRoots};

/// Leaf coins of a round: more than any test has seats.
const LEAF_COINS: u16 = 16;

pub(crate) fn identity(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

pub(crate) fn organiser() -> Identity {
    identity(1)
}

pub(crate) fn steward() -> Identity {
    identity(2)
}

pub(crate) fn node(number: u8) -> Identity {
    identity(10 + number)
}

pub(crate) fn verifier(number: u8) -> Identity {
    identity(200 + number)
}

/// A manifest of so many nodes that each compute two leaves; every contribution is audited.
pub(crate) fn manifest(nodes: u16) -> Manifest {
    let mut manifest = tiny(organiser().id(), steward().id(), 4, nodes);
    manifest.audit.share_ppm = 1_000_000;
    manifest
}

/// The same with a mixture of experts, whose rows come to be after `branch` updates.
pub(crate) fn with_rows(mut manifest: Manifest, rows: u16, branch: u32) -> Manifest {
    mixture(&mut manifest.model, rows);
    if let Family::Mixture(mixture) = &mut manifest.model.family {
        mixture.branch = branch;
    }
    manifest
}

pub(crate) fn slots(slots: impl IntoIterator<Item = u16>) -> Bitmap {
    let mut bitmap = Bitmap::default();
    slots.into_iter().for_each(|slot| bitmap.insert(Slot(slot)));
    bitmap
}

/// Roots of a state of one shard after so many updates.
pub(crate) fn roots(step: u32) -> StateRoots {
    StateRoots::from([shard_roots(step)])
}

fn shard_roots(step: u32) -> ShardRoots {
    let digest = Digest([5; 32]);
    ShardRoots {
        step,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }
}

/// An invitation of the organiser's to one member.
pub(crate) fn invitation(role: Role, founder: bool) -> (Invitation, InvitationSecret) {
    let secret = InvitationSecret::new([7; 32]);
    (Invitation { role, uses: u32::MAX, expires: u64::MAX, key: secret.key(), founder }, secret)
}

/// The coins of a verifier, for twenty rounds from 0 on.
pub(crate) fn coins(number: u8) -> CoinTree {
    CoinTree::new([200 + number; 32], Round(0), 20, LEAF_COINS).expect("few coins")
}

/// The ledger of a run, and what its members would say.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) ledger: Ledger,
}

impl Chain {
    /// Of this manifest; nobody is admitted.
    pub(crate) fn open(manifest: Manifest) -> Self {
        let mut chain = Self { ledger: Ledger::new(Arc::new(manifest)) };
        let layout = chain.ledger.layout().clone();
        let shards = layout.all_shards(chain.ledger.rows());
        chain.seal(Body::Open(shards.map(|_| shard_roots(0)).collect()));
        chain
    }

    /// Four nodes and a verifier in the first round.
    pub(crate) fn begin() -> Self {
        Self::begin_with(manifest(4))
    }

    /// The same of another manifest.
    pub(crate) fn begin_with(manifest: Manifest) -> Self {
        let mut chain = Self::open(manifest);
        chain.admit_verifier(0);
        (0..4).for_each(|number| chain.admit_node(number, false));
        chain.seal(Body::Begin(List::new(chain.ledger.derived_seats()).expect("few seats")));
        chain
    }

    /// The same with everything of the first round sealed up to its inputs: all of them in every part.
    pub(crate) fn reducing() -> Self {
        let mut chain = Self::begin();
        chain.freeze(0..4);
        chain.seal(chain.inputs(0, chain.parts().map(|_| slots(0..4)).collect()));
        chain
    }

    pub(crate) fn sign(&self, body: Body) -> Signed<Record> {
        steward().sign(self.ledger.run(), &self.ledger.record(body))
    }

    pub(crate) fn seal(&mut self, body: Body) -> Signed<Record> {
        let signed = self.sign(body);
        self.ledger.apply(&signed).expect("a record that keeps the rules");
        signed
    }

    /// Why the ledger does not take a record; it has not changed then.
    pub(crate) fn refusal(&self, body: Body) -> Option<Reject> {
        self.ledger.clone().apply(&self.sign(body)).err()
    }

    pub(crate) fn enrol(
        &self,
        newcomer: &Identity,
        (role, founder): (Role, bool),
        coins: Option<CoinTerms>,
    ) -> Signed<Enrol> {
        let run = self.ledger.run();
        let (invitation, secret) = invitation(role, founder);
        let invitation = organiser().sign(run, &invitation);
        let addresses = List::new(vec![Text::new("host:1").expect("a short text")]).expect("one address");
        let enrol = Enrol {
            invitation: Some(secret.present(run, invitation, newcomer.id())),
            addresses,
            coins,
            name: Default::default(),
        };
        newcomer.sign(run, &enrol)
    }

    pub(crate) fn admit_node(&mut self, number: u8, founder: bool) {
        self.seal(Body::Admit(self.enrol(&node(number), (Role::Node, founder), None)));
    }

    pub(crate) fn admit_verifier(&mut self, number: u8) {
        let terms = Some(coins(number).terms());
        self.seal(Body::Admit(self.enrol(&verifier(number), (Role::Verifier, false), terms)));
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        (0..self.ledger.current().map_or(0, |view| view.parts().len() as u16)).map(Part)
    }

    /// What a node would commit to.
    pub(crate) fn commitment(&self, number: u8, leaves: u32) -> Commit {
        let view = self.ledger.current().expect("a round");
        Commit {
            round: view.round(),
            head: view.head(),
            state: view.base().root(),
            slot: view.slot_of(&node(number).id()).expect("a seat"),
            seats: view.seats().len() as u16,
            route: view.route(view.slot_of(&node(number).id()).expect("a seat")),
            leaves,
            profile: self.ledger.manifest().profile,
            loss: 1,
            root: Digest([number; 32]),
        }
    }

    pub(crate) fn commit(&self, number: u8, leaves: u32) -> Signed<Commit> {
        node(number).sign(self.ledger.run(), &self.commitment(number, leaves))
    }

    /// A Freeze with these commitments.
    pub(crate) fn frozen(&self, commits: Vec<Signed<Commit>>) -> Body {
        let view = self.ledger.current().expect("a round");
        let commits = List::new(commits).expect("few commitments");
        Body::Freeze(Freeze { round: view.round(), state: view.state().root(), commits })
    }

    /// These nodes commit to as many leaves as they may.
    pub(crate) fn freeze(&mut self, nodes: impl IntoIterator<Item = u8>) -> Signed<Record> {
        let view = self.ledger.current().expect("a round");
        let quota = |number| {
            let slot = view.slot_of(&node(number).id()).expect("a seat");
            view.seats()[slot.index()].quota
        };
        let commits = nodes.into_iter().map(|number| self.commit(number, quota(number))).collect();
        self.seal(self.frozen(commits))
    }

    pub(crate) fn inputs(&self, attempt: u8, parts: Vec<Bitmap>) -> Body {
        let round = self.ledger.current().expect("a round").round();
        Body::Inputs(Inputs { round, attempt, parts: List::new(parts).expect("few parts") })
    }

    pub(crate) fn identity_of(&self, member: MemberId) -> Identity {
        let known = (0..=u8::MAX).map(identity).find(|identity| identity.id() == member);
        known.expect("a member of the fixture")
    }

    /// What the first aggregator of a part would say.
    pub(crate) fn part_result(&self, part: Part) -> (PartResult, Identity) {
        let view = self.ledger.current().expect("a round");
        let result = PartResult {
            round: view.round(),
            part,
            attempt: view.attempt(part).expect("a part"),
            freeze: view.freeze_digest().expect("a freeze"),
            inputs: view.inputs()[part.index()],
            digest: Digest([9; 32]),
        };
        (result, self.identity_of(view.aggregating(part).next().expect("an aggregator")))
    }

    pub(crate) fn result(&self, part: Part) -> Signed<PartResult> {
        let (result, author) = self.part_result(part);
        author.sign(self.ledger.run(), &result)
    }

    pub(crate) fn echo(&self, author: &Identity) -> Signed<Echo> {
        let view = self.ledger.current().expect("a round");
        let echo = Echo { round: view.round(), freeze: view.freeze_digest().expect("a freeze") };
        author.sign(self.ledger.run(), &echo)
    }

    /// The state that the open round gives: one row becomes all where the run says so.
    pub(crate) fn next_state(&self) -> StateRoots {
        let (view, before) = (self.ledger.current().expect("a round"), self.ledger.state());
        let steps = view.shard_steps();
        let takes = |id: ShardId| steps.iter().any(|step| step.shard == id);
        let shards = (0..).map(ShardId).zip(&before.shards);
        let after: StateRoots = shards
            .map(|(id, shard)| ShardRoots { step: shard.step + u32::from(takes(id)), ..*shard })
            .collect();
        let rows = self.ledger.manifest().model.rows_after(after.step());
        if rows > before.rows() { after.branched(rows) } else { after }
    }

    /// The Outcome of the open round, with a result of every part that counts somebody and an echo of every commitment.
    pub(crate) fn outcome(&self) -> Outcome {
        let view = self.ledger.current().expect("a round");
        let results =
            self.parts().map(|part| (!view.inputs()[part.index()].is_empty()).then(|| self.result(part)));
        let echoes =
            view.commitments().map(|(_, commitment)| self.echo(&self.identity_of(commitment.author)));
        let mut outcome = Outcome {
            round: view.round(),
            results: List::new(results.collect()).expect("few parts"),
            echoes: List::new(echoes.collect()).expect("few echoes"),
            state: self.next_state(),
            seats: List::default(),
            credits: List::default(),
            seconds: List::default(),
            steps: List::new(view.row_steps().to_vec()).expect("few rows"),
        };
        outcome.seats = List::new(self.ledger.seats_after(&outcome)).expect("few seats");
        outcome
    }

    /// The open round to its end: all seats commit, and all count.
    pub(crate) fn finish_round(&mut self) {
        self.finish_round_with(Vec::new());
    }

    /// The same, with credits in its Outcome.
    pub(crate) fn finish_round_with(&mut self, credits: Vec<Credit>) {
        self.reduce_all();
        let mut outcome = self.outcome();
        outcome.credits = List::new(credits).expect("few credits");
        outcome.seats = List::new(self.ledger.seats_after(&outcome)).expect("few seats");
        self.seal(Body::Outcome(outcome));
    }

    /// The open round up to its inputs: all seats commit, and all count in each part that they compute on.
    pub(crate) fn reduce_all(&mut self) {
        let view = self.ledger.current().expect("a round").clone();
        let number = |member| (0..100).find(|number| node(*number).id() == member).expect("a node");
        let nodes: Vec<u8> = view.seats().iter().map(|seat| number(seat.member)).collect();
        self.freeze(nodes);
        let weighs = |slot: &u16| {
            let view = self.ledger.current().expect("a round");
            view.commitment(Slot(*slot)).is_some_and(|commitment| commitment.weight > 0)
        };
        let counted = |part| {
            let seats = (0..view.seats().len() as u16).filter(weighs);
            slots(seats.filter(|slot| view.computes_on(Slot(*slot), part)))
        };
        self.seal(self.inputs(0, self.parts().map(counted).collect()));
    }

    /// A verifier asks a node about a round, showing its coin.
    pub(crate) fn request(&self, by: u8, round: Round, target: MemberId) -> Signed<AuditRequest> {
        let freeze = self.ledger.round(round).and_then(|view| view.freeze_digest()).expect("a freeze");
        let coin = coins(by).open(CoinKind::Node, round, 0);
        verifier(by).sign(self.ledger.run(), &AuditRequest { round, freeze, target, coin })
    }

    pub(crate) fn duty(&self, by: u8, round: Round) -> Duty {
        let freeze = self.ledger.round(round).and_then(|view| view.freeze_digest()).expect("a freeze");
        Duty { round, freeze, coin: coins(by).open(CoinKind::Node, round, 0).expect("a coin") }
    }
}
