//! The beginning of a small run, for tests of all crates: who enrols, what is sealed, what a seat commits to.

#[cfg(test)]
pub(crate) mod chain;

use std::sync::Arc;

use super::Ledger;
use crate::codec::{List, Text};
use crate::coins::CoinTerms;
use crate::ids::{Digest, RunId};
use crate::manifest::Manifest;
use crate::manifest::fixture::tiny;
use crate::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use crate::messages::record::{Body, Freeze, Record};
use crate::messages::round::Commit;
use crate::sign::{Identity, Signed, Verified};

/// Whoever joins a run.
#[derive(Clone)]
pub struct Newcomer<'a> {
    /// Its key.
    pub identity: &'a Identity,
    /// What it does.
    pub role: Role,
    /// Whether its invitation is a founder's.
    pub founder: bool,
    /// Where it can be dialled.
    pub address: Option<&'a str>,
    /// The coins that it registers, if it verifies.
    pub coins: Option<CoinTerms>,
}

impl<'a> Newcomer<'a> {
    /// A node that nobody can dial.
    pub fn node(identity: &'a Identity) -> Self {
        Self { identity, role: Role::Node, founder: false, address: None, coins: None }
    }

    /// A verifier that nobody can dial, with these coins.
    pub fn verifier(identity: &'a Identity, coins: CoinTerms) -> Self {
        Self { role: Role::Verifier, coins: Some(coins), ..Self::node(identity) }
    }

    /// The same at an address.
    #[must_use]
    pub fn at(self, address: &'a str) -> Self {
        Self { address: Some(address), ..self }
    }

    /// Its enrolment, with an invitation of the organiser's that serves any number of newcomers.
    pub fn enrol(&self, run: RunId, organiser: &Identity) -> Signed<Enrol> {
        let (invitation, secret) = invitation(self.role, self.founder);
        let invitation = organiser.sign(run, &invitation);
        let addresses = self.address.map(|address| Text::new(address).expect("a short text"));
        let enrol = Enrol {
            invitation: Some(secret.present(run, invitation, self.identity.id())),
            addresses: List::new(addresses.into_iter().collect()).expect("one address"),
            coins: self.coins.clone(),
            name: Default::default(),
            engagement: Default::default(),
        };
        self.identity.sign(run, &enrol)
    }
}

/// An invitation for any number of members, and its secret.
pub fn invitation(role: Role, founder: bool) -> (Invitation, InvitationSecret) {
    let secret = InvitationSecret::new([7; 32]);
    (Invitation { role, uses: u32::MAX, expires: u64::MAX, key: secret.key(), founder }, secret)
}

/// Whoever makes a run.
pub struct Makers {
    /// Signs invitations.
    pub organiser: Identity,
    /// Seals records.
    pub steward: Identity,
}

impl Makers {
    /// Those with these secrets.
    pub fn of(organiser: u8, steward: u8) -> Self {
        let [organiser, steward] = [organiser, steward].map(|secret| Identity::from_secret(&[secret; 32]));
        Self { organiser, steward }
    }

    /// The manifest of a small run of theirs, with so many rounds and nodes.
    pub fn tiny(&self, rounds: u32, nodes: u16) -> Manifest {
        tiny(self.organiser.id(), self.steward.id(), rounds, nodes)
    }

    /// Seals a record that keeps the rules.
    pub fn seal(&self, ledger: &mut Ledger, body: Body) -> (Signed<Record>, Verified<Record>) {
        let signed = self.steward.sign(ledger.run(), &ledger.record(body));
        let record = ledger.apply(&signed).expect("a record that keeps the rules");
        (signed, record)
    }

    /// A ledger whose first round has begun, with these members.
    pub fn begin<'a>(&self, manifest: Manifest, newcomers: impl IntoIterator<Item = Newcomer<'a>>) -> Ledger {
        let mut ledger = Ledger::new(Arc::new(manifest));
        let state = ledger.state().clone();
        self.seal(&mut ledger, Body::Open(state));
        for newcomer in newcomers {
            let enrol = newcomer.enrol(ledger.run(), &self.organiser);
            self.seal(&mut ledger, Body::Admit(enrol));
        }
        let seats = List::new(ledger.derived_seats()).expect("few seats");
        self.seal(&mut ledger, Body::Begin(seats));
        ledger
    }

    /// Freezes the open round with these commitments, in any order.
    pub fn freeze<'a>(&self, ledger: &mut Ledger, commits: impl IntoIterator<Item = (&'a Identity, Commit)>) {
        let mut commits: Vec<_> = commits.into_iter().collect();
        commits.sort_by_key(|(_, commit)| commit.slot);
        let run = ledger.run();
        let signed = commits.iter().map(|(member, commit)| member.sign(run, commit));
        let commits = List::new(signed.collect()).expect("few");
        let view = ledger.current().expect("a round");
        let freeze = Freeze { round: view.round(), state: view.state().root(), commits };
        self.seal(ledger, Body::Freeze(freeze));
    }
}

/// What a member commits to in the open round: as many leaves as it may, with this loss and root.
pub fn commitment(ledger: &Ledger, member: &Identity, loss: i64, root: Digest) -> Commit {
    let view = ledger.current().expect("a round");
    let slot = view.slot_of(&member.id()).expect("a seat");
    Commit {
        round: view.round(),
        head: view.head(),
        state: view.base().root(),
        slot,
        seats: u16::try_from(view.seats().len()).expect("few seats"),
        route: view.route(slot),
        leaves: view.seats()[slot.index()].quota,
        profile: ledger.manifest().profile,
        loss,
        root,
    }
}
