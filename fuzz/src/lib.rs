//! What the targets that drive machines share: a small run, its people, and what they say.

use std::sync::{Arc, LazyLock};

use muster_core::codec::{List, Text};
use muster_core::coins::{CoinTerms, CoinTree};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Part, Round, RunId, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{Manifest, Profile, Retention, Schedule, Timers};
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::record::{Body, Freeze, Inputs, Outcome, Record, Seat};
use muster_core::messages::round::{Bitmap, Commit, Echo, PartResult, Receipt};
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::state::{ShardRoots, StateRoots};

/// People who may become members; the last one as a verifier.
pub const PEOPLE: usize = 5;

static IDENTITIES: LazyLock<Vec<Identity>> =
    LazyLock::new(|| (0..PEOPLE as u8 + 2).map(|number| Identity::from_secret(&[number + 1; 32])).collect());
static COINS: LazyLock<CoinTree> =
    LazyLock::new(|| CoinTree::new([9; 32], Round(0), 16, 4).expect("few coins"));

/// One of the people.
pub fn person(number: usize) -> &'static Identity {
    &IDENTITIES[number % PEOPLE]
}

/// The person with this name.
pub fn named(member: &MemberId) -> Option<&'static Identity> {
    IDENTITIES.iter().find(|identity| identity.id() == *member)
}

/// The steward.
pub fn steward() -> &'static Identity {
    &IDENTITIES[PEOPLE]
}

/// What the steward signs with.
pub fn steward_key() -> Arc<Identity> {
    Arc::new(Identity::from_secret(&[PEOPLE as u8 + 1; 32]))
}

/// The organiser.
pub fn organiser() -> &'static Identity {
    &IDENTITIES[PEOPLE + 1]
}

/// The verifier's coins.
pub fn coins() -> &'static CoinTree {
    &COINS
}

/// A run of `rounds` rounds that begins with `nodes` nodes.
pub fn manifest(rounds: u32, nodes: u16) -> Arc<Manifest> {
    let mut manifest = tiny(organiser().id(), steward().id(), rounds, nodes);
    (manifest.model.width, manifest.model.hidden, manifest.model.sequence) = (4, 4, 4);
    manifest.training.leaves = 7;
    (manifest.optimiser.warmup, manifest.optimiser.schedule) = (0, Schedule::Constant);
    (manifest.audit.coin_lead, manifest.audit.final_rounds) = (1, 1);
    manifest.admission.most_members = 8;
    manifest.timers = Timers { commit: 1000, part: 1000, result: 1000, audit: 1000, final_audit: 1000 };
    manifest.retention = Retention { contributions: 2, states: 2 };
    manifest.check().expect("a good manifest");
    Arc::new(manifest)
}

/// A person's enrolment.
pub fn enrol(run: RunId, number: usize, role: Role, dialable: bool) -> Signed<Enrol> {
    let secret = InvitationSecret::new([9; 32]);
    let invitation = Invitation { role, uses: 4, expires: u64::MAX, key: secret.key(), founder: false };
    let addresses = if dialable { vec![Text::new("somewhere:1").expect("short")] } else { Vec::new() };
    let coins: Option<CoinTerms> = (role == Role::Verifier).then(|| coins().terms());
    let invitation = organiser().sign(run, &invitation);
    let invitation = Some(secret.present(run, invitation, person(number).id()));
    person(number).sign(run, &Enrol { invitation, addresses: List::new(addresses).expect("one"), coins })
}

/// The roots of an imagined state.
pub fn roots(step: u32) -> StateRoots {
    let digest = Hasher::new(Domain::STATE).value(&step).finish();
    StateRoots::from([ShardRoots {
        step,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }])
}

/// The root of an imagined contribution.
pub fn contribution(round: Round, member: &MemberId) -> Digest {
    Hasher::new(Domain::PART).value(&round).value(member).finish()
}

/// The digest of an imagined result.
pub fn reduced(round: Round, part: Part, inputs: &Bitmap) -> Digest {
    Hasher::new(Domain::PART).value(&round).value(&part).value(inputs).finish()
}

/// A good commitment to some leaves.
pub fn commit(view: &RoundView, slot: Slot, leaves: u32) -> Option<Commit> {
    let seat = view.seats().get(slot.index())?;
    Some(Commit {
        round: view.round(),
        head: view.head(),
        state: view.state().root(),
        slot,
        seats: view.seats().len() as u16,
        route: None,
        leaves: leaves.clamp(1, seat.quota),
        profile: Profile::Exact,
        loss: 1,
        root: contribution(view.round(), &seat.member),
    })
}

/// A receipt of one of a part's keepers for a sender.
pub fn receipt(ledger: &Ledger, part: Part, keeper: &MemberId, sender: MemberId) -> Option<Signed<Receipt>> {
    let view = ledger.current()?;
    let attempt = view.attempt(part)?;
    let receipt =
        Receipt { round: view.round(), part, attempt, sender, root: contribution(view.round(), &sender) };
    Some(named(keeper)?.sign(ledger.run(), &receipt))
}

/// Seals a record that the ledger takes.
pub fn seal(ledger: &mut Ledger, body: Body) -> (Signed<Record>, Verified<Record>) {
    let signed = steward().sign(ledger.run(), &ledger.record(body));
    let record = ledger.apply(&signed).expect("an honest record");
    (signed, record)
}

/// Freezes these commitments to the first round and ends it, everything counted and every freeze echoed. The first record is
/// the freeze.
pub fn end_round(
    ledger: &mut Ledger,
    commits: Vec<Signed<Commit>>,
) -> Vec<(Signed<Record>, Verified<Record>)> {
    let (run, round) = (ledger.run(), Round(0));
    let state = ledger.current().expect("a round").state().root();
    let freeze = Freeze { round, state, commits: List::new(commits).expect("few") };
    let frozen = seal(ledger, Body::Freeze(freeze));
    let view = ledger.current().expect("a round").clone();
    let mut all = Bitmap::default();
    (0..view.seats().len() as u16).for_each(|slot| all.insert(Slot(slot)));
    let parts = List::new(vec![all; view.parts().len()]).expect("few");
    let inputs = seal(ledger, Body::Inputs(Inputs { round, attempt: 0, parts }));
    let result = |part: u16| {
        let part = Part(part);
        let (slot, attempt) = view.aggregator(part)?;
        let (freeze, digest) = (view.freeze_digest()?, reduced(round, part, &all));
        let result = PartResult { round, part, attempt, freeze, inputs: all, digest };
        Some(named(&view.member_at(slot)?)?.sign(run, &result))
    };
    let results = List::new((0..view.parts().len() as u16).map(result).collect()).expect("few");
    let freeze = ledger.current().and_then(|view| view.freeze_digest()).expect("a frozen round");
    let echo = |seat: &Seat| named(&seat.member).expect("a person").sign(run, &Echo { round, freeze });
    let echoes = List::new(view.seats().iter().map(echo).collect()).expect("few");
    let (state, seats, credits, seconds) = (roots(1), List::default(), List::default(), List::default());
    let steps = List::new(ledger.current().map_or(Vec::new(), |view| view.row_steps().to_vec())).expect("few");
    let outcome = Outcome { round, results, echoes, state, seats, credits, seconds, steps };
    let outcome = seal(ledger, Body::Outcome(outcome));
    vec![frozen, inputs, outcome]
}
