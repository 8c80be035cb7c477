//! `muster members`: who takes part by whose leave, and what each of them weighs. And a member's own invitations.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use muster_core::ids::MemberId;
use muster_core::ledger::{Ledger, Member, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{Role, Ticket};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_replica::archive::read_ledger;
use muster_replica::{BootstrapError, Contact, FollowError, PeerError, Peers, fetch_ledger, fetch_manifest};

use crate::exit::{Exit, Failure, Outcome};
use crate::leave::ticket;
use crate::organise::invite::{InviteOptions, bounded, hosted_at, invite, read_manifest};
use crate::organise::{ORGANISER, read_identity};

/// The records of a run that is over, in its folder.
const LEDGER: &str = "ledger.bin";

/// Prints an invitation from a run's folder, or from the directory of a member that may bring in others.
///
/// # Errors
/// [`Failure`] as of [`invite`]; a member invites nodes only. Whether it may invite at all the ledger says when the
/// invitation is used.
pub fn invitation(options: &InviteOptions) -> Outcome<Ticket> {
    let member = if options.folder.join(format!("{ORGANISER}.key")).exists() {
        None
    } else {
        ticket(&options.folder)?
    };
    let Some(own) = member else { return invite(options) };
    if options.founder || options.role == Some(Role::Verifier) {
        return Err(Failure::usage("a member invites nodes; founders and verifiers come by the organiser"));
    }
    let identity = read_identity(&options.folder, "identity")?;
    let invitation = Some(options.sign(&identity, own.run, Role::Node)?);
    let addresses = if options.addresses.is_empty() { own.addresses } else { bounded(&options.addresses)? };
    Ok(Ticket { addresses, invitation, ..own })
}

/// The members of the run that a folder belongs to, the steward's or a member's, as a tree for people.
///
/// # Errors
/// [`Failure`]: the folder belongs to no run, or its steward cannot be reached and the run is not over.
pub async fn members(folder: &Path) -> Outcome<String> {
    let ledger = match ticket(folder)? {
        Some(ticket) => {
            let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
            let steward = Contact { member: ticket.steward, addresses };
            let peers = Peers::new(Endpoint::new(ticket.run, stranger()?));
            let manifest = fetch_manifest(&peers, &steward, ticket.run).await.map_err(unreached)?;
            fetch_ledger(&peers, &steward, &manifest).await.map_err(followed)?
        }
        None if folder.join(LEDGER).exists() => archived(folder)?,
        None => {
            let manifest = Arc::new(read_manifest(folder)?);
            let steward = Contact { member: manifest.steward, addresses: hosted_at(folder)? };
            let peers = Peers::new(Endpoint::new(manifest.run(), stranger()?));
            fetch_ledger(&peers, &steward, &manifest).await.map_err(followed)?
        }
    };
    Ok(tree(&ledger))
}

/// A key for asking only.
fn stranger() -> Outcome<Arc<Identity>> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|error| Failure::environment(format!("the system gives no randomness ({error})")))?;
    Ok(Arc::new(Identity::from_secret(&secret)))
}

fn archived(folder: &Path) -> Outcome<Ledger> {
    let manifest: Arc<Manifest> = Arc::new(read_manifest(folder)?);
    let mut ledger = Ledger::new(manifest);
    let path = folder.join(LEDGER);
    let damaged = |why: String| Failure::environment(format!("{}: is damaged ({why})", path.display()));
    for record in read_ledger(&path).map_err(|error| damaged(error.to_string()))? {
        ledger.apply(&record).map_err(|reject| damaged(reject.to_string()))?;
    }
    Ok(ledger)
}

fn unreached(error: BootstrapError) -> Failure {
    match error {
        BootstrapError::Follow(error) => followed(error),
        BootstrapError::Manifest(misuse) => Failure::network(misuse.to_string()),
    }
}

fn followed(error: FollowError) -> Failure {
    match error {
        FollowError::Steward(error @ PeerError::Refused(_)) => error.into(),
        FollowError::Steward(error) => Failure::network(error.to_string()),
        error => Failure { exit: Exit::Negative, message: error.to_string() },
    }
}

/// One line a member, those that it brought in below it.
pub fn tree(ledger: &Ledger) -> String {
    let mut text = String::new();
    below(ledger, None, &mut text);
    text
}

fn below(ledger: &Ledger, inviter: Option<MemberId>, text: &mut String) {
    for member in ledger.members().iter().filter(|member| member.inviter == inviter) {
        let indent = "  ".repeat(usize::from(member.depth));
        let (id, role) = (member.id, member.role.word());
        let _ = writeln!(text, "{indent}{id}  {role:<8}  {}", standing(ledger, member));
        below(ledger, Some(member.id), text);
    }
}

fn standing(ledger: &Ledger, member: &Member) -> String {
    let mut said = vec![
        match member.standing {
            Standing::Active => "active",
            Standing::Away => "away",
            Standing::Silent(_) => "owes an answer",
            Standing::Left => "left",
            Standing::Banned => "banned",
        }
        .to_owned(),
    ];
    if member.role == Role::Node {
        said.push(weight(ledger, member));
    }
    if member.invited > 0 {
        said.push(format!("brought in {}", member.invited));
    }
    if ledger.is_closed(member) {
        said.push("may bring in nobody any more".into());
    }
    said.join(", ")
}

/// What a node's leaves weigh, in words.
pub fn weight(ledger: &Ledger, member: &Member) -> String {
    let admission = &ledger.manifest().admission;
    let credit = ledger.credit(member);
    if member.founder && admission.probation > 0 {
        return format!("founder, {credit} leaves recomputed");
    }
    if ledger.weighs(member) {
        return format!("counts, {credit} leaves recomputed");
    }
    let (vouched, verifiers) = (ledger.vouched(member), member.credits.len());
    format!(
        "on probation: {vouched} of {} leaves recomputed, by {verifiers} of {} verifiers",
        admission.probation, admission.vouchers
    )
}
