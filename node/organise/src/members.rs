//! `muster members`: the members, who invited each, and what weight each has. Also a member's own invitations, and
//! `muster close-tree`, which ends them.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use muster_core::ids::MemberId;
use muster_core::ledger::{Closed, Holding, Ledger, Member, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{CloseTree, Role, Ticket};
use muster_core::messages::wire::{Request, Response};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_replica::archive::read_ledger;
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_replica::{Contact, PeerError, Peers, fetch_ledger, fetch_manifest};
use muster_view::words::{audits, counted};

use crate::invite::{InviteOptions, bounded, hosted_at, invite, organiser, read_manifest};
use crate::ticket;
use crate::{organiser_key, read_identity};

/// The records of a run that is over, in its folder.
pub(super) const LEDGER: &str = "ledger.bin";

/// Prints an invitation from a run's folder, or from the directory of a member that may bring in others.
///
/// # Errors
/// [`Failure`] as of [`invite`]; and if a member invites anybody but nodes. Whether it may invite at all is checked by the
/// ledger when the invitation is used.
pub fn invitation(options: &InviteOptions) -> Outcome<Ticket> {
    // A folder may be both: whoever holds the organiser's key invites as the organiser.
    let organises = options.organiser_key.is_some() || organiser_key(&options.folder, None).exists();
    let member = if organises { None } else { ticket(&options.folder)? };
    let Some(own) = member else { return invite(options) };
    // STAND-5: a member's invitation is for nodes that are no founders.
    if options.founder || options.role == Some(Role::Verifier) {
        return Err(Failure::usage("a member invites nodes; founders and verifiers come by the organiser"));
    }
    let identity = read_identity(&options.folder, "identity")?;
    let pass = Some(options.sign(&identity, own.run, Role::Node)?);
    let addresses = if options.addresses.is_empty() { own.addresses } else { bounded(&options.addresses)? };
    Ok(Ticket { addresses, pass, ..own })
}

/// The members of the run that a folder belongs to, the steward's or a member's, as a tree for people.
///
/// # Errors
/// [`Failure`]: the folder belongs to no run, or its steward cannot be reached and the run is not over.
pub async fn members(folder: &Path) -> Outcome<String> {
    let ledger = match ticket(folder)? {
        Some(ticket) => {
            let (peers, steward, manifest) = reach(&ticket).await?;
            fetch_ledger(&peers, &steward, &manifest).await?
        }
        None if folder.join(LEDGER).exists() => archived(folder)?,
        None => Hosted::of(folder)?.ledger().await?,
    };
    Ok(tree(&ledger))
}

/// A run as a member's directory, or the steward's folder, leads to it.
pub struct Way {
    /// The agreement.
    pub manifest: Arc<Manifest>,
    /// Its steward.
    pub steward: Contact,
    /// The key of the directory: a member's, or the steward's own.
    pub identity: Arc<Identity>,
    /// Channels under that key.
    pub peers: Peers,
}

/// The way into the run that a folder belongs to, under the folder's own key; another process may hold the folder.
///
/// # Errors
/// [`Failure`]: the folder belongs to no run, has no key, or its steward cannot be reached.
pub async fn way(folder: &Path) -> Outcome<Way> {
    let identity = Arc::new(read_identity(folder, "identity")?);
    let (manifest, steward) = match ticket(folder)? {
        Some(ticket) => {
            let (_, steward, manifest) = reach(&ticket).await?;
            (manifest, steward)
        }
        None => {
            let hosted = Hosted::of(folder)?;
            (hosted.manifest, hosted.steward)
        }
    };
    let peers = Peers::new(Endpoint::new(manifest.run(), identity.clone()));
    Ok(Way { manifest, steward, identity, peers })
}

/// The manifest of the run that a ticket leads to, fetched under a throw-away key.
///
/// # Errors
/// [`Failure`]: the steward cannot be reached, or the manifest is not the run's or breaks a rule.
pub async fn agreed(ticket: &Ticket) -> Outcome<Manifest> {
    let (_, _, manifest) = reach(ticket).await?;
    Ok(Arc::unwrap_or_clone(manifest))
}

async fn reach(ticket: &Ticket) -> Outcome<(Peers, Contact, Arc<Manifest>)> {
    let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
    let steward = Contact { member: ticket.steward, addresses };
    let peers = Peers::new(Endpoint::new(ticket.run, stranger()?));
    let manifest = fetch_manifest(&peers, &steward, ticket.run).await?;
    Ok((peers, steward, manifest))
}

/// Has the steward seal that the invitations of a member, and of those below it, admit nobody any more. `name` is the
/// beginning of the member's id. Returns the closed tree in words.
///
/// # Errors
/// [`Failure`]: there is no key of the organiser, nobody hosts the run or it takes nobody any more, no member or
/// more than one is called so, or the tree is closed already.
pub async fn close_tree(folder: &Path, organiser_key: Option<&Path>, name: &str) -> Outcome<String> {
    let hosted = Hosted::of(folder)?;
    let organiser = organiser(folder, organiser_key, &hosted.manifest)?;
    if folder.join(LEDGER).exists() {
        return Err(Failure {
            exit: Exit::Negative,
            message: "the run is over: nobody comes to it any more".into(),
        });
    }
    let member = named(&hosted.ledger().await?, name)?;
    let order = organiser.sign(hosted.manifest.run(), &CloseTree { member });
    match hosted.peers.ask(&hosted.steward, &Request::CloseTree(order)).await? {
        Response::Done => {}
        _ => return Err(PeerError::Unexpected.into()),
    }
    // Fetched again: it shows that the order was sealed.
    let ledger = hosted.ledger().await?;
    let mut text =
        String::from("closed: nobody comes by these invitations any more. Whoever is there stays.\n");
    ledger.member(&member).into_iter().for_each(|member| branch(&ledger, member, &mut text));
    Ok(text)
}

/// The only member whose id begins with `name`.
fn named(ledger: &Ledger, name: &str) -> Outcome<MemberId> {
    let name = name.to_lowercase();
    let ids = ledger.members().iter().map(|member| member.id);
    let mut found = ids.filter(|id| format!("{id:#}").starts_with(&name));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Failure::usage(format!(
            "no member has an id that begins with {name:?}; `muster members` lists them"
        ))),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("more than one member id begins with {name:?}; give more of the id")))
        }
    }
}

/// A run that is being hosted from a folder on this machine.
struct Hosted {
    manifest: Arc<Manifest>,
    steward: Contact,
    peers: Peers,
}

impl Hosted {
    fn of(folder: &Path) -> Outcome<Self> {
        let manifest = Arc::new(read_manifest(folder)?);
        let steward = Contact { member: manifest.steward, addresses: hosted_at(folder)? };
        let peers = Peers::new(Endpoint::new(manifest.run(), stranger()?));
        Ok(Self { manifest, steward, peers })
    }

    async fn ledger(&self) -> Outcome<Ledger> {
        Ok(fetch_ledger(&self.peers, &self.steward, &self.manifest).await?)
    }
}

/// A throw-away key: observers and newcomers have no other (CHAN-10).
pub(super) fn stranger() -> Outcome<Arc<Identity>> {
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
    for record in read_ledger(folder).map_err(|error| damaged(error.to_string()))? {
        ledger.apply(&record).map_err(|reject| damaged(reject.to_string()))?;
    }
    Ok(ledger)
}

/// One line a member, those that it brought in below it.
pub fn tree(ledger: &Ledger) -> String {
    let mut text = String::new();
    below(ledger, None, &mut text);
    text
}

fn below(ledger: &Ledger, inviter: Option<MemberId>, text: &mut String) {
    let members = ledger.members().iter().filter(|member| member.inviter == inviter);
    members.for_each(|member| branch(ledger, member, text));
}

fn branch(ledger: &Ledger, member: &Member, text: &mut String) {
    let indent = "  ".repeat(usize::from(member.depth));
    let (id, role) = (member.id, member.role.word());
    let name = if member.name.is_empty() { String::new() } else { format!("{}  ", &*member.name) };
    let _ = writeln!(text, "{indent}{id}  {role:<8}  {name}{}", standing(ledger, member));
    below(ledger, Some(member.id), text);
}

fn standing(ledger: &Ledger, member: &Member) -> String {
    let mut said = vec![
        match member.standing {
            Standing::Silent(_) => "owes an answer",
            _ => member.standing_word(),
        }
        .to_owned(),
    ];
    let service = &member.service;
    match member.role {
        Role::Node => {
            said.push(match member.standing {
                // What it weighs is of no account any more.
                Standing::Banned | Standing::Left => {
                    format!("{} recomputed", counted(ledger.credit(member), "leaf"))
                }
                _ => weight(ledger, member),
            });
            said.push(format!("{} counted", counted(service.leaves, "leaf")));
        }
        Role::Verifier => said.push(audits(service)),
    }
    if let Some(Holding { row, ready, .. }) = member.holding {
        said.push(format!("{} row {row}", if ready { "holds" } else { "fetches" }));
    }
    if member.invited > 0 {
        said.push(format!("brought in {}", member.invited));
    }
    match member.closed {
        Some(Closed::Ordered) => said.push("closed by the organiser".into()),
        _ if ledger.is_closed(member) => said.push("may bring in nobody any more".into()),
        _ => {}
    }
    said.join(", ")
}

/// What a node's leaves weigh, in words.
pub fn weight(ledger: &Ledger, member: &Member) -> String {
    let admission = &ledger.manifest().admission;
    let credit = ledger.credit(member);
    if member.founder && admission.probation > 0 {
        return format!("founder, {} recomputed", counted(credit, "leaf"));
    }
    if ledger.weighs(member) {
        return format!("counts, {} recomputed", counted(credit, "leaf"));
    }
    let (vouched, verifiers) = (ledger.vouched(member), member.credits.len());
    format!(
        "on probation: {vouched} of {} leaves recomputed, by {verifiers} of {}",
        admission.probation,
        counted(admission.vouchers, "verifier")
    )
}
