//! What the targets that drive machines share: a small run, its people, and what they say.

use std::sync::{Arc, LazyLock};

use muster_core::codec::{List, Real, Text};
use muster_core::coins::{CoinTerms, CoinTree};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Part, Round, RunId, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::{
    Admission, Aggregation, Audit, Data, Decoder, Family, Manifest, Method, Model, Optimiser, Profile,
    Retention, Rollback, Rule, Schedule, Start, Timers, Tokeniser, Tolerance, Training, VERSION,
};
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::round::{Bitmap, Commit, Receipt};
use muster_core::sign::{Identity, Signed};
use muster_core::state::StateRoots;

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

/// The organiser.
pub fn organiser() -> &'static Identity {
    &IDENTITIES[PEOPLE + 1]
}

/// The verifier's coins.
pub fn coins() -> &'static CoinTree {
    &COINS
}

/// A run of some rounds that begins with so many nodes.
pub fn manifest(rounds: u32, nodes: u16) -> Arc<Manifest> {
    let real = |value| Real::new(value).expect("a finite constant");
    let decoder = Decoder { key_value_heads: 1, tied: true, rope_base: real(10_000.0) };
    let manifest = Manifest {
        version: VERSION,
        name: Text::new("fuzz").expect("a short name"),
        organiser: organiser().id(),
        steward: steward().id(),
        nonce: [0; 16],
        model: Model {
            vocabulary: 256,
            width: 4,
            layers: 1,
            heads: 2,
            hidden: 4,
            sequence: 4,
            norm_epsilon: real(1e-5),
            initial_scale: real(0.1),
            family: Family::Decoder(decoder),
        },
        profile: Profile::Exact,
        tolerance: Tolerance::none(),
        data: Data {
            root: Digest::default(),
            bytes: 4096,
            held_out_root: Digest::default(),
            held_out_bytes: 0,
            tokeniser: Tokeniser::Bytes,
            start: Start::Drawn,
        },
        training: Training { rounds, leaves: 7, leaf_windows: 1, grid_bits: 8, recompute: false },
        optimiser: Optimiser {
            method: Method::AdamW,
            rate: real(0.01),
            minimum_rate: real(0.001),
            warmup: 0,
            schedule: Schedule::Constant,
            beta1: real(0.9),
            beta2: real(0.95),
            epsilon: real(1e-8),
            weight_decay: real(0.0),
            clip_norm: real(1.0),
        },
        aggregation: Aggregation {
            rule: Rule::CenteredClip,
            radius: real(1.25),
            iterations: 5,
            cap_ppm: 200_000,
            assumed_ppm: 200_000,
            mixing: false,
            replicas: 1,
        },
        audit: Audit {
            node_ppm: 500_000,
            leaves: 1,
            coin_lead: 1,
            final_rounds: 1,
            recheck_ppm: 100_000,
            block_ppm: 50_000,
        },
        admission: Admission::closed(nodes, 0, 8),
        timers: Timers { commit: 1000, part: 1000, result: 1000, audit: 1000, final_audit: 1000 },
        retention: Retention { contributions: 2, states: 2 },
        rollback: Rollback::never(),
        delay: 0,
        exchange: 0,
        groups: 0,
    };
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
    StateRoots {
        step,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }
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
