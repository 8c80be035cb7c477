//! What the driver performs effects with: the directory, the replica, the channels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use muster_core::ids::{Digest, MemberId, Round};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::record::Ban;
use muster_core::messages::wire::{Notice, Request};
use muster_core::regime::Regime;
use muster_core::state::{State, StateRoots};
use muster_replica::exit::Failure;
use muster_replica::{
    Brought, Contact, Exhibited, HeldState, KeptState, PeerError, Replica, Results, Unkept, contact,
    keep_evidence,
};
use muster_roles::verifier::audits::{Message, Tally, Work};
use muster_roles::verifier::{Answer, Integers};
use muster_store::states::Vectors;
use tracing::debug;

use crate::session::VerifierSession;
use crate::spent::AuditCost;

/// Shared by all that goes on at once.
pub(super) struct Tools {
    pub(super) session: VerifierSession,
    pub(super) replica: Arc<Mutex<Replica>>,
    pub(super) layout: Arc<Layout>,
    /// Parameters that an earlier process of this directory was computing on.
    pub(super) states: BTreeMap<Digest, Arc<State>>,
    /// The values that were applied.
    pub(super) results: Results,
    pub(super) spent: Mutex<AuditCost>,
}

/// Where members can be reached.
#[derive(Default)]
pub(super) struct Contacts(BTreeMap<MemberId, Contact>);

/// What audits take of a state: in a run of local updates its moments as well (LOCAL-1).
pub(super) fn audit_vectors(manifest: &Manifest) -> Vectors {
    if Regime::of(manifest).begins_with_moments() { Vectors::All } else { Vectors::Parameters }
}

impl Contacts {
    pub(super) fn of(ledger: &Ledger) -> Self {
        let members = ledger.members().iter().map(|member| member.id);
        Self(members.filter_map(|member| Some((member, contact(ledger, &member)?))).collect())
    }

    pub(super) fn get(&self, member: &MemberId) -> Option<Contact> {
        self.0.get(member).cloned()
    }

    /// Those of these members that are known, in this order.
    pub(super) fn all(&self, members: &[MemberId]) -> Vec<Contact> {
        members.iter().filter_map(|member| self.get(member)).collect()
    }
}

impl Tools {
    /// States at hand.
    pub(super) fn states(&self) -> BTreeSet<Digest> {
        let replica = lock(&self.replica);
        replica.states_at_hand().chain(self.states.keys().copied()).collect()
    }

    /// One of them.
    pub(super) fn kept(&self, root: &Digest) -> Option<KeptState> {
        let kept = lock(&self.replica).state_at(root);
        kept.or_else(|| Some(KeptState::in_memory(*root, self.states.get(root)?.clone())))
    }

    /// The state of the work's round, the text, and the contribution.
    pub(super) fn witness(&self, work: &Work, state: KeptState, q: Integers) -> Exhibited {
        let subject = &work.subject;
        let name = (subject.commit.round, subject.author);
        let contributions = q.map(|q| (name, q)).into_iter().collect();
        let brought = Brought { contributions, ..Brought::default() };
        Exhibited::new(vec![state], self.session.dataset.clone(), &self.session.manifest, brought)
    }

    /// Tells the steward. An accusation is on the disk before.
    ///
    /// # Errors
    /// [`Failure`] of the disk.
    pub(super) async fn tell(&self, message: &Message) -> Result<Answer, Failure> {
        // First: a process that is killed here goes on with the accusation.
        if let Message::Accuse(evidence) = message {
            self.session.home.save_evidence(evidence)?;
        }
        Ok(match self.session.peers.ask(&self.session.target.steward, &request(message)).await {
            Ok(_) => Answer::Taken,
            Err(PeerError::Refused(why)) => {
                debug!("the steward did not take {}: {why}", words(message));
                Answer::Refused
            }
            Err(error) => {
                debug!("the steward could not be told: {error}");
                Answer::Unreached
            }
        })
    }

    /// Has what audits take of these states on the disk, as far as they are at hand, and of no others but `wanted`.
    ///
    /// # Errors
    /// [`Failure`] of the disk.
    pub(super) async fn keep_states(
        &self,
        wanted: BTreeSet<Round>,
        fresh: BTreeMap<Round, StateRoots>,
    ) -> Result<(), Failure> {
        let at_hand = |(round, roots): (Round, StateRoots)| Some((round, self.kept(&roots.root())?, roots));
        let fresh: Vec<_> = fresh.into_iter().filter_map(at_hand).collect();
        let home = self.session.home.clone();
        let vectors = audit_vectors(&self.session.manifest);
        // Beside following: a state is as large as the model.
        let kept = tokio::task::spawn_blocking(move || {
            // One after the other, so that only one of them is in memory. What cannot be read is told of there.
            let read =
                fresh.into_iter().filter_map(|(round, kept, roots)| Some((round, kept.near()?, roots)));
            for (round, state, roots) in read {
                home.save_audit_state(round, &state, &roots, vectors)?;
            }
            home.prune_audit_states(&|round| wanted.contains(&round))
        });
        Ok(kept.await.map_err(|error| Failure::environment(error.to_string()))??)
    }

    /// Writes the whole state down, to go on from.
    ///
    /// # Errors
    /// [`Failure`] of the disk.
    pub(super) async fn save_state(&self) -> Result<(), Failure> {
        let (replica, home) = (self.replica.clone(), self.session.home.clone());
        let saved = tokio::task::spawn_blocking(move || {
            let (round, HeldState { state, rows, roots }) = {
                let replica = lock(&replica);
                (replica.round(), replica.held_state().clone())
            };
            home.save_state_and_rows(round, &state, &rows, &roots)?;
            home.prune_states(&|kept| kept == round)
        });
        Ok(saved.await.map_err(|error| Failure::environment(error.to_string()))??)
    }

    /// Keeps what a ban rests on; where.
    pub(super) async fn keep_evidence(&self, ban: &Ban) -> Result<std::path::PathBuf, Unkept> {
        let VerifierSession { peers, target, home, manifest, .. } = &self.session;
        keep_evidence(peers, &target.steward, home, manifest, ban).await
    }

    /// Writes down with which state the run ended and what watching cost, for programs.
    ///
    /// # Errors
    /// [`Failure`] of the disk.
    pub(super) fn write_result(&self, tally: &Tally) -> Result<(), Failure> {
        let (id, endpoint) = (self.session.identity.id(), &self.session.endpoint);
        let (root, rounds) = {
            let replica = lock(&self.replica);
            (replica.snapshot().0, replica.round().0)
        };
        let (sent, received) = (endpoint.bytes_sent(), endpoint.bytes_received());
        let spent = lock(&self.spent).json(tally, rounds, sent, received);
        let text = format!(
            "{{\"id\":\"{id:#}\",\"role\":\"verifier\",\"leaves_counted\":0,\"final_state_root\":\"{root:#}\",{spent}}}\n"
        );
        Ok(self.session.home.write_file("result.json", text.as_bytes())?)
    }
}

fn request(message: &Message) -> Request {
    match message {
        Message::Notice(_, notice) | Message::Say(notice) => Request::Notice((**notice).clone()),
        Message::Accuse(evidence) => Request::Accuse((**evidence).clone()),
    }
}

fn words(message: &Message) -> String {
    match message {
        Message::Notice((round, slot), _) => format!("a step of the audit of round {round}, slot {slot}"),
        Message::Say(notice) if matches!(**notice, Notice::Return(_)) => "the return".into(),
        Message::Say(_) => "a coin or a recheck".into(),
        Message::Accuse(evidence) => format!("the accusation {}", evidence.digest()),
    }
}
