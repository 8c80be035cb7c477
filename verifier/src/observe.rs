//! `observe`: follows a run without being a member, checking every record and every state.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_core::ledger::{Ledger, Stage};
use muster_core::messages::record::{Ban, Body};
use muster_net::swarm::Settings;
use muster_replica::archive::mean_loss;
use muster_replica::exit::Failure;
use muster_replica::{Bounds, Event, StopRequests, evidence_words, keep_evidence, memory};
use muster_store::journal::Journal;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::output::say;
use crate::session::{Target, VerifierSession};

/// For evidence that is still on its way when the run is over.
const LAST: Duration = Duration::from_secs(30);

/// How observing ended.
pub enum ObservationEnd {
    /// The run is over.
    Closed,
    /// Somebody asked it to stop.
    Interrupted,
}

/// How to observe.
pub struct ObserveOptions {
    /// Where text and journal live; a folder named after the run if absent.
    pub directory: Option<PathBuf>,
    /// Compute threads.
    pub threads: usize,
    /// Where to gossip; none to go without.
    pub gossip: Option<Settings>,
    /// Where to show the run to browsers; none for nowhere.
    pub web: Option<String>,
    /// What it may take of the machine.
    pub bounds: Bounds,
}

/// Follows until the run closes or somebody asks it to stop, with a key that is no member's.
///
/// # Errors
/// [`Failure`]; negative when the steward breaks a rule or seals a state that does not follow.
pub async fn observe(target: &str, options: ObserveOptions) -> Result<ObservationEnd, Failure> {
    let ObserveOptions { directory, threads, gossip, web, bounds } = options;
    let target = Target::parse(target)?;
    let directory = directory.unwrap_or_else(|| format!("muster-observer-{}", target.run).into());
    let session =
        VerifierSession::open(&directory, target, bounds, &|manifest| memory::following(manifest, threads))
            .await?;
    let journal = Arc::new(Journal::open(&session.home)?);
    let mut follower = session.follower(journal.clone(), threads, gossip).await?;
    let _pages = session.show(web.as_deref(), &journal, &mut follower).await?;
    say(&format!("observing run {} ({})", session.target.run, &*session.manifest.name));
    let mut evidence = JoinSet::new();
    let following = async {
        while follower.ledger().stage() != Stage::Closed || !follower.in_step() {
            let events = follower.step().await?;
            for event in &events {
                show(follower.ledger(), event);
                if let Event::Sealed(record) = event
                    && let Body::Ban(ban) = &record.body
                {
                    evidence.spawn(keep(&session, ban));
                }
            }
        }
        let _ = timeout(LAST, async { while evidence.join_next().await.is_some() {} }).await;
        say("the run is over; its last state was checked here");
        Ok(ObservationEnd::Closed)
    };
    let mut stops = StopRequests::listen();
    tokio::select! {
        ended = following => ended,
        () = stops.next() => Ok(ObservationEnd::Interrupted),
    }
}

/// Keeps what a ban rests on, and says where it is or that the steward does not show it.
fn keep(session: &VerifierSession, ban: &Ban) -> impl Future<Output = ()> + use<> {
    let (peers, steward) = (session.peers.clone(), session.target.steward.clone());
    let (home, manifest, ban) = (session.home.clone(), session.manifest.clone(), ban.clone());
    async move {
        let kept = keep_evidence(&peers, &steward, &home, &manifest, &ban).await;
        say(&format!("of the ban of {}: {}", ban.culprit, evidence_words(&kept)));
    }
}

fn show(ledger: &Ledger, event: &Event) {
    match event {
        Event::Applied(round, roots) => {
            let Some(view) = ledger.round(*round) else { return };
            let (committed, seats) = (view.commitments().count(), view.seats().len());
            let loss = mean_loss(view);
            say(&format!(
                "round {round}  loss {loss:.4}  {committed} of {seats} committed  state {} checked",
                roots.root()
            ));
        }
        Event::Sealed(record) => match &record.body {
            Body::Admit(enrol) => say(&format!("{} is admitted", enrol.claimed_signer())),
            Body::Silence(request) => {
                if let Ok(request) = request.verify(ledger.run()) {
                    say(&format!("{} did not answer an audit of round {}", request.target, request.round));
                }
            }
            Body::Ban(ban) => {
                let (culprit, words, round) = (ban.culprit, ban.finding.words(), ban.round);
                say(&format!("{culprit} is banned: {words} in round {round}, found by {}", ban.accuser));
            }
            Body::Idle(idle) => {
                say(&format!("{} left its duty of round {} undone", idle.verifier, idle.round));
            }
            Body::Late(_) => ledger.newly_late().iter().for_each(|member| {
                say(&format!("{member} lets its audits wait, and counts nowhere until it answers"))
            }),
            Body::CloseTree(order) => {
                if let Ok(order) = order.verify(ledger.run()) {
                    say(&format!(
                        "the organiser closed the tree of {}: nobody comes by it any more",
                        order.member
                    ));
                }
            }
            Body::Rewind(rewind) => say(&format!(
                "the state goes back to that before round {}, for evidence {}",
                rewind.to, rewind.evidence
            )),
            Body::Close(root) => say(&format!("closed with state {root}")),
            _ => {}
        },
        Event::Notice(_) => {}
    }
}
