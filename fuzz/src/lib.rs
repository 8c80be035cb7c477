//! What the targets that drive machines share: a small run, its people, and what they say.

pub mod records;

use std::sync::{Arc, LazyLock};

use muster_core::codec::{List, Real, Text};
use muster_core::coins::{CoinTerms, CoinTree};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Part, Round, RunId, ShardId, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{
    Family, Manifest, Mixture, Profile, Retention, Rollback, Router, Schedule, Timers,
};
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

/// What a run with several rows of experts says of them.
#[derive(Clone, Copy, Debug)]
pub struct RowSettings {
    /// Rows.
    pub rows: u16,
    /// Rounds before they come to be.
    pub branch: u32,
    /// Contributions to a row below which each is audited.
    pub few: u16,
    /// Contributions up to which a row waits for that; 0, or below `few`.
    pub held: u16,
}

/// The same run with several rows of experts.
pub fn with_rows(manifest: &Manifest, settings: RowSettings) -> Arc<Manifest> {
    let RowSettings { rows, branch, few, held } = settings;
    let mut manifest = manifest.clone();
    let decoder = manifest.model.decoder().expect("a decoder").clone();
    let [balance, trust] = [0.0, 4.0].map(|value| Real::new(value).expect("a finite constant"));
    let (columns, active, shared_hidden) = (2, 1, 4);
    // Where rows wait, an audit may take a round, and rounds are remembered for two.
    let lag = if held > 0 { manifest.retention.contributions } else { 0 };
    let mixture =
        Mixture { decoder, columns, active, shared_hidden, balance, trust, rows, branch, few, held, lag };
    manifest.model.family = Family::Mixture(mixture);
    manifest.data.router = Some(Router { rows, tokens: 4, digest: Digest::default() });
    manifest.check().expect("a good manifest");
    Arc::new(manifest)
}

/// The same run, which goes back after a conviction.
pub fn with_rollback(manifest: &Manifest) -> Arc<Manifest> {
    let mut manifest = manifest.clone();
    let limit = Real::new(0.5).expect("a finite constant");
    manifest.rollback = Rollback { limit, most_rounds: 2, spacing: 3 };
    manifest.check().expect("a good manifest");
    Arc::new(manifest)
}

/// A window of an imagined text.
pub fn window(index: u64) -> Vec<u32> {
    (0..5).map(|place| ((index * 4 + place) * 37 % 251) as u32).collect()
}

/// A person's enrolment.
pub fn enrol(run: RunId, number: usize, role: Role, dialable: bool) -> Signed<Enrol> {
    let secret = InvitationSecret::new([9; 32]);
    let invitation = Invitation { role, uses: 4, expires: u64::MAX, key: secret.key(), founder: false };
    let addresses = if dialable { vec![Text::new("somewhere:1").expect("short")] } else { Vec::new() };
    let coins: Option<CoinTerms> = (role == Role::Verifier).then(|| coins().terms());
    let invitation = organiser().sign(run, &invitation);
    let invitation = Some(secret.present(run, invitation, person(number).id()));
    person(number).sign(
        run,
        &Enrol {
            invitation,
            addresses: List::new(addresses).expect("one"),
            coins,
            name: Default::default(),
            engagement: Default::default(),
        },
    )
}

/// The roots of an imagined shard after so many updates.
fn shard_roots(step: u32) -> ShardRoots {
    let digest = Hasher::new(Domain::STATE).value(&step).finish();
    ShardRoots {
        step,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }
}

/// The roots of an imagined state that a run begins with.
pub fn initial(ledger: &Ledger) -> StateRoots {
    let rows = ledger.manifest().model.rows_after(0);
    ledger.layout().all_shards(rows).map(|_| shard_roots(0)).collect()
}

/// The roots of the imagined state that the open round gives: its one row becomes all where the run says so.
pub fn next_state(ledger: &Ledger) -> StateRoots {
    let (steps, before) = (ledger.current().map_or_else(Vec::new, RoundView::shard_steps), ledger.state());
    let takes = |id: ShardId| steps.iter().any(|step| step.shard == id);
    let shards = (0..).map(ShardId).zip(&before.shards);
    let after: StateRoots =
        shards.map(|(id, shard)| if takes(id) { shard_roots(shard.step + 1) } else { *shard }).collect();
    let rows = ledger.manifest().model.rows_after(after.step());
    if rows > before.rows() { after.branched(rows) } else { after }
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
        route: view.route(slot),
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
    let (state, seats, credits, seconds) =
        (next_state(ledger), List::default(), List::default(), List::default());
    let steps =
        List::new(ledger.current().map_or(Vec::new(), |view| view.row_steps().to_vec())).expect("few");
    let outcome = Outcome { round, results, echoes, state, seats, credits, seconds, steps };
    let outcome = seal(ledger, Body::Outcome(outcome));
    vec![frozen, inputs, outcome]
}
