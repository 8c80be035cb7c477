//! `enroll`: an identity, coins, the manifest and the text, and the steward's admission.

use std::path::PathBuf;
use std::time::Instant;

use muster_compute::Machine;
use muster_core::codec::{decode, encode};
use muster_core::coins::{CoinTerms, CoinTree};
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::limits;
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{Addresses, Enrol, Name, Role, Ticket};
use muster_core::messages::wire::{Request, Response};
use muster_replica::exit::Failure;
use muster_replica::{Bounds, PeerError, fetch_ledger, follow_ledger, memory};
use muster_store::home::Home;
use muster_view::words::counted;

use crate::output::say;
use crate::session::{Target, VerifierSession, optional_file};

/// File that holds the invitation.
pub const TICKET: &str = "ticket";
/// File that holds what was registered of the coins.
pub const COINS: &str = "coins.bin";
/// Name of the secret that the coins come from.
pub const SECRET: &str = "coins";
/// Rounds that may begin between the look at the ledger and the admission.
const HASTE: u32 = 4;
/// Rounds beyond the last one, in case that some are trained again.
const MARGIN: u32 = 64;
/// Enrolments tried, when the run moves on faster than [`HASTE`]: the first one measures how fast that is.
const ATTEMPTS: usize = 4;

/// The outcome of an enrolment.
pub struct Enrolled {
    /// The directory to watch from.
    pub directory: PathBuf,
    /// Who was admitted.
    pub member: MemberId,
    /// First round that it audits.
    pub first_round: Round,
}

/// Enrols this machine as a verifier that calls itself `name`, where the run stays within these bounds; does
/// nothing when it is one already.
///
/// # Errors
/// [`Failure`].
pub async fn enroll(
    invitation: &str,
    name: &Name,
    directory: Option<PathBuf>,
    bounds: Bounds,
) -> Result<Enrolled, Failure> {
    let ticket = muster_replica::invitation(invitation)?;
    let invited = ticket.pass.as_ref().map(|pass| pass.verify(ticket.run)).transpose();
    let invited =
        invited.map_err(|reject| Failure::usage(format!("the invitation is not valid: {reject}")))?;
    if let Some(invited) = invited.as_ref().filter(|invited| invited.role != Role::Verifier) {
        let role = invited.role.word();
        return Err(Failure::usage(format!(
            "this invitation is for a {role}, not for a verifier: use `muster join`"
        )));
    }
    let directory = directory.unwrap_or_else(|| format!("muster-verifier-{}", ticket.run).into());
    let audits = |manifest: &Manifest| memory::auditing_at_most(manifest, &Machine::new(1, None));
    let session = VerifierSession::open(&directory, Target::of(&ticket), bounds, &audits).await?;
    // STAND-5: members invite nodes only; the steward would refuse, after the text was fetched.
    if invited.is_some_and(|invited| invited.author() != session.manifest.organiser) {
        return Err(Failure::usage("the invitation was not signed by the organiser of the run"));
    }
    let first_round = admission(&session, &ticket, name).await?;
    // Last: a directory with a ticket is one that was admitted.
    session.home.write_secret(TICKET, ticket.to_line().as_bytes())?;
    Ok(Enrolled { directory, member: session.identity.id(), first_round })
}

async fn admission(session: &VerifierSession, ticket: &Ticket, name: &Name) -> Result<Round, Failure> {
    let me = session.identity.id();
    let (peers, steward) = (&session.peers, &session.target.steward);
    let (mut refused, mut lead) = (String::new(), Lead::default());
    // Of a long run it takes a while, too. After that only what is new is fetched.
    let mut ledger = fetch_ledger(peers, steward, &session.manifest).await?;
    for _ in 0..ATTEMPTS {
        follow_ledger(peers, steward, &mut ledger).await?;
        if ledger.member(&me).is_some() {
            return registered(&session.home)?
                .map(|terms| terms.first_round)
                .ok_or_else(|| lost_coins(&session.home));
        }
        let first = first_round(&ledger);
        let known = registered(&session.home)?;
        // Refused with coins that are still in time: then it is not the coins, and another try would be refused, too.
        if !refused.is_empty() && known.as_ref().is_some_and(|terms| terms.first_round >= first) {
            break;
        }
        let unanswered = known.filter(|_| refused.is_empty());
        let Some(terms) = coins_in_time(session, &mut ledger, unanswered, &mut lead).await? else {
            continue;
        };
        // Before the request: coins that were registered and then lost would leave the verifier idle for good.
        session.home.write_file(COINS, &encode(&terms))?;
        let terms_first = terms.first_round;
        let enrol = Enrol {
            invitation: ticket.present(me),
            addresses: Addresses::default(),
            coins: Some(terms),
            name: name.clone(),
            engagement: Default::default(),
        };
        let request = Request::Enrol(session.identity.sign(ticket.run, &enrol));
        match session.peers.ask(&session.target.steward, &request).await {
            Ok(Response::Done) => return Ok(terms_first),
            Ok(_) => return Err(PeerError::Unexpected.into()),
            Err(PeerError::Refused(why)) => refused = why,
            Err(error) => return Err(error.into()),
        }
    }
    if refused.is_empty() {
        let why = format!(
            "the run goes through {} while coins are made; try again when it is slower",
            counted(lead.passed, "round")
        );
        return Err(Failure::environment(why));
    }
    Err(PeerError::Refused(refused).into())
}

/// Coins that the steward can still register once they are made; none where the run went through more rounds meanwhile
/// than they had to spare. `lead` is then as large as this machine and this run need.
async fn coins_in_time(
    session: &VerifierSession,
    ledger: &mut Ledger,
    unanswered: Option<CoinTerms>,
    lead: &mut Lead,
) -> Result<Option<CoinTerms>, Failure> {
    let (begun, before, first) = (Instant::now(), ledger.next_round(), first_round(ledger));
    let terms = lead.coins(&session.home, &session.manifest, unanswered, first)?;
    follow_ledger(&session.peers, &session.target.steward, ledger).await?;
    let first = first_round(ledger);
    if lead.was_enough(&terms, ledger.next_round().0.saturating_sub(before.0), first) {
        return Ok(Some(terms));
    }
    say(&format!(
        "the coins took {:.1} s, in which the run went through {}: they are made anew, for rounds from {} on",
        begun.elapsed().as_secs_f64(),
        counted(lead.passed, "round"),
        lead.begin(first)
    ));
    Ok(None)
}

/// How much later than they could new coins begin. Coins of a long run take seconds, in which a fast one goes through more
/// rounds than anybody would guess: the first try measures how many.
#[derive(Default)]
struct Lead {
    passed: u32,
}

impl Lead {
    /// With which round new coins begin, where they could begin with `first`.
    fn begin(&self, first: Round) -> Round {
        Round(first.0.saturating_add(self.passed.saturating_mul(2)))
    }

    /// The coins of an earlier enrolment that got no answer, while they can still be registered: the steward may have taken
    /// them meanwhile, and then others would be worth nothing. Else new ones.
    fn coins(
        &self,
        home: &Home,
        manifest: &Manifest,
        known: Option<CoinTerms>,
        first: Round,
    ) -> Result<CoinTerms, Failure> {
        match known.filter(|terms| in_time(terms, first)) {
            Some(terms) => Ok(terms),
            None => Ok(new_coins(home, manifest, self.begin(first))?.terms()),
        }
    }

    /// Whether coins can still be registered after so many rounds have passed, so that new ones could begin with `first`.
    fn was_enough(&mut self, terms: &CoinTerms, passed: u32, first: Round) -> bool {
        let enough = in_time(terms, first);
        if !enough {
            self.passed = passed;
        }
        enough
    }
}

/// The first round whose coins may be registered now, with some to spare.
fn first_round(ledger: &Ledger) -> Round {
    if ledger.current().is_none() {
        return ledger.next_round();
    }
    Round(ledger.next_round().0.saturating_add(ledger.manifest().audit.coin_lead).saturating_add(HASTE))
}

/// Whether coins can still be registered, where new ones would begin with the round `first`.
fn in_time(terms: &CoinTerms, first: Round) -> bool {
    terms.first_round.0.saturating_add(HASTE) > first.0
}

fn new_coins(home: &Home, manifest: &Manifest, first: Round) -> Result<CoinTree, Failure> {
    let leaf_coins = usize::from(manifest.admission.most_members).min(limits::SEATS) as u16;
    // MANIFEST-13: there are coins enough for every round and the rechecks after it. The last ones draw these and are
    // never shown.
    let margin = MARGIN.max(manifest.retention.contributions.saturating_add(2));
    let rounds = manifest.most_rounds().saturating_sub(first.0).saturating_add(margin);
    let most = u32::try_from(limits::COINS / (1 + u64::from(leaf_coins))).unwrap_or(u32::MAX);
    CoinTree::new(*home.secret(SECRET)?, first, rounds.min(most), leaf_coins).map_err(Failure::arithmetic)
}

/// The coins that this directory registered.
///
/// # Errors
/// [`Failure::Usage`] when it never did.
pub fn coins(home: &Home) -> Result<CoinTree, Failure> {
    let directory = home.path().display();
    let terms = registered(home)?.ok_or_else(|| {
        Failure::usage(format!(
            "{directory} is not enrolled: run `muster-verifier enroll INVITATION --data-dir {directory}` first"
        ))
    })?;
    let tree = CoinTree::new(*home.secret(SECRET)?, terms.first_round, terms.rounds, terms.leaf_coins);
    let tree = tree.map_err(Failure::arithmetic)?;
    // Another secret gives coins that nobody accepts, and the verifier would be idle in each round.
    if tree.root() != terms.root {
        return Err(Failure::environment(format!(
            "{directory}: {SECRET}.key is not the secret of the registered coins"
        )));
    }
    Ok(tree)
}

fn registered(home: &Home) -> Result<Option<CoinTerms>, Failure> {
    let Some(bytes) = optional_file(home, COINS)? else { return Ok(None) };
    let terms = decode(&bytes).map_err(|reject| {
        Failure::environment(format!("{}: {COINS} is damaged ({reject})", home.path().display()))
    })?;
    Ok(Some(terms))
}

fn lost_coins(home: &Home) -> Failure {
    Failure::environment(format!(
        "{}: this verifier is admitted, but {COINS} is missing; restore it from a copy",
        home.path().display()
    ))
}

#[cfg(test)]
mod tests {
    use muster_core::codec::List;
    use muster_core::ids::unhex;
    use muster_replica::memory::available;

    use muster_replica::exit::Exit;

    use super::*;

    /// A manifest of the vectors that keeps the rules, and much to keep of it.
    fn large() -> Manifest {
        let vectors = include_str!("../../spec/vectors/manifest.json");
        let sound = vectors.split("\"sound, one window\"").nth(1).unwrap();
        let digits = sound.split("\"bytes\": \"").nth(1).unwrap().split('"').next().unwrap();
        let bytes =
            (0..digits.len()).step_by(2).map(|index| unhex::<1>(&digits[index..index + 2]).unwrap()[0]);
        let mut manifest: Manifest = decode(&bytes.collect::<Vec<u8>>()).unwrap();
        (manifest.training.rounds, manifest.retention.states) = (349_520, u32::MAX);
        manifest.check().unwrap();
        manifest
    }

    #[test]
    fn an_enrolment_without_an_answer_is_tried_again_with_the_same_coins() {
        let directory = tempfile::tempdir().unwrap();
        let (home, mut manifest) = (Home::open(directory.path()).unwrap(), large());
        manifest.training.rounds = 100;
        let terms = |known, first| Lead::default().coins(&home, &manifest, known, Round(first)).unwrap();
        let first = terms(None, 10);
        // The run has moved on by less than there is to spare.
        assert_eq!(terms(Some(first.clone()), 10 + HASTE - 1), first);
        let later = terms(Some(first), 10 + HASTE);
        assert_eq!(later.first_round, Round(10 + HASTE), "too late for those");
    }

    /// Twenty rounds go by whenever coins are made.
    #[test]
    fn coin_6_a_run_that_is_faster_than_its_coins_are_made_is_joined_at_the_second_try() {
        let directory = tempfile::tempdir().unwrap();
        let (home, mut manifest, mut lead) =
            (Home::open(directory.path()).unwrap(), large(), Lead::default());
        manifest.training.rounds = 100;
        let mut first = Round(10);
        let mut enrol = || {
            let terms = lead.coins(&home, &manifest, None, first).unwrap();
            first.0 += 20;
            lead.was_enough(&terms, 20, first)
        };
        assert_eq!([enrol(), enrol()], [false, true]);
    }

    /// Why nobody enrols for this run, where nobody is there to ask: the refusal comes first.
    async fn refusal(manifest: &Manifest, bounds: Bounds) -> String {
        manifest.check().unwrap();
        let directory = tempfile::tempdir().unwrap();
        Home::open(directory.path()).unwrap().write_file("manifest.bin", &manifest.bytes()).unwrap();
        let (run, steward, addresses) = (manifest.run(), manifest.steward, List::default());
        let ticket = Ticket { run, steward, addresses, pass: None };
        let folder = Some(directory.path().to_owned());
        let refused = enroll(&ticket.to_line(), &Name::default(), folder, bounds).await;
        let Err(Failure { exit: Exit::Environment, message: why }) = refused.map(|_| ()) else {
            panic!("it took a seat")
        };
        assert!(!directory.path().join(COINS).exists() && !directory.path().join("data").exists());
        why
    }

    #[tokio::test]
    async fn a_machine_without_the_memory_takes_no_seat() {
        if available().is_none() {
            return;
        }
        let mut manifest = large();
        (manifest.model.width, manifest.model.layers, manifest.model.hidden) = (1 << 13, 8, 1 << 15);
        let why = refusal(&manifest, Bounds::default()).await;
        assert!(why.contains("GiB of memory") && why.contains("model.*"), "{why}");
        let bounds = Bounds { memory: Some(1 << 20), ..Bounds::default() };
        let why = refusal(&large(), bounds).await;
        assert!(why.contains("GiB of memory here (") && why.contains("--max-memory allows 0.001;"), "{why}");
    }

    #[tokio::test]
    async fn limit_3_a_machine_without_the_disk_fetches_nothing_and_takes_no_seat() {
        let mut manifest = large();
        // The earlier states alone take terabytes of the disk, and none of the memory.
        (manifest.model.width, manifest.model.layers, manifest.model.hidden) = (1 << 8, 4, 1 << 10);
        let why = refusal(&manifest, Bounds::default()).await;
        assert!(
            why.contains("GiB by retention.states") && why.contains("are free there; make room"),
            "{why}"
        );
        let why = refusal(&manifest, Bounds { disk: Some(1 << 30), ..Bounds::default() }).await;
        assert!(why.contains("GiB by retention.states") && why.contains("--max-disk allows 1;"), "{why}");
    }
}
