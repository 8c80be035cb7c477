//! `watch`: follows the run and audits it until it closes.
//!
//! [`muster_roles::verifier`] decides; `driver` performs what it says with `tools` and what `fetch` brings.

mod driver;
mod fetch;
mod status;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use muster_compute::Machine;
use muster_core::ids::{Digest, Height};
use muster_core::ledger::Ledger;
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::Body;
use muster_net::swarm::Settings;
use muster_replica::exit::Failure;
use muster_replica::{Bounds, memory};
use muster_roles::verifier::audits::Conduct;
use muster_roles::verifier::coins::Coins;
use muster_roles::verifier::{Verifier, VerifierSetup};
use muster_store::error::Kind;
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_store::secrets;
use muster_view::status::window::{METRICS, Window};

use self::driver::VerifierDriver;
pub use self::driver::WatchEnd;
use self::tools::{Tools, audit_vectors};
use crate::enroll;
use crate::notes::Journaled;
use crate::output::say;
use crate::session::{Target, VerifierSession};
use crate::worker::AuditWorker;

/// How to audit.
pub struct WatchOptions {
    /// The directory that `enroll` made.
    pub directory: PathBuf,
    /// What computes, the first time.
    pub machine: Machine,
    /// Where to gossip; none to go without.
    pub gossip: Option<Settings>,
    /// Where to show the run to browsers; none for nowhere.
    pub web: Option<String>,
    /// Where to show what this program does to monitoring systems; none for nowhere.
    pub metrics: Option<String>,
    /// What it may take of the machine.
    pub bounds: Bounds,
    /// How findings become words: honest, or a lie of the rehearsal.
    pub conduct: Arc<dyn Conduct>,
}

/// Audits until the run closes or somebody asks it to stop; a second request does not wait for the work under way.
///
/// # Errors
/// [`Failure`]; negative when the steward breaks a rule.
pub async fn watch(options: WatchOptions) -> Result<WatchEnd, Failure> {
    let directory = &options.directory;
    let path = directory.display();
    if !directory.exists() {
        return Err(Failure::usage(format!(
            "{path} does not exist: run `muster-verifier enroll INVITATION --data-dir {path}` first"
        )));
    }
    let audits = |manifest: &Manifest| memory::auditing_at_most(manifest, &options.machine);
    let session = VerifierSession::open(directory, target(&options)?, options.bounds, &audits).await?;
    let coins = enroll::coins(&session.home)?;
    let journal = Arc::new(Journal::open(&session.home)?);
    let (manifest, machine) = (session.manifest.clone(), options.machine);
    // Before it follows: a machine that fails its self-test must not be seen as a verifier that sleeps.
    let worker = tokio::task::spawn_blocking(move || AuditWorker::new(manifest, &machine)).await;
    let worker =
        worker.map_err(|error| Failure::environment(error.to_string()))?.map_err(Failure::arithmetic)?;
    let mut follower = session.follower(journal.clone(), machine.threads, options.gossip.clone()).await?;
    let _pages = session.show(options.web.as_deref(), &journal, &mut follower).await?;
    let window = Window::open(directory, options.metrics.as_deref()).await;
    let (window, asked) = window.map_err(Failure::environment)?;
    if let Some(address) = window.metrics() {
        say(&format!("{METRICS}{address}metrics"));
    }
    let (mut states, mut kept) = (BTreeMap::new(), BTreeSet::new());
    let vectors = audit_vectors(&session.manifest);
    for round in session.home.audit_states()? {
        if let Ok((state, roots)) = session.home.load_audit_state(round, vectors) {
            states.insert(roots.root(), Arc::new(state));
            kept.insert(round);
        }
    }
    let Recalled { silences, accusations } = Recalled::read(&session.home, &journal, follower.ledger())?;
    let machine = Verifier::new(VerifierSetup {
        ledger: follower.ledger(),
        manifest: session.manifest.clone(),
        identity: session.identity.clone(),
        coins: Coins::new(coins, Arc::new(Journaled::new(journal))),
        conduct: options.conduct,
        silences,
        accusations,
        kept,
    });
    let (replica, results) = (follower.replica().clone(), follower.results().clone());
    let layout = lock(&replica).layout().clone();
    let tools = Tools { session, replica, layout, states, results, spent: Mutex::default() };
    let driver = VerifierDriver::new(machine, tools, worker, asked);
    driver.run(follower).await
}

fn target(options: &WatchOptions) -> Result<Target, Failure> {
    let path = options.directory.display();
    let home = Home::open(&options.directory)?;
    let line = match secrets::text(&home.path().join(enroll::TICKET)) {
        Err(error) if error.kind() == Kind::Missing => None,
        line => Some(line?),
    };
    let unknown = || {
        Failure::usage(format!(
            "{path} is not enrolled: run `muster-verifier enroll INVITATION --data-dir {path}` first"
        ))
    };
    Target::parse(&line.ok_or_else(unknown)?)
        .map_err(|wrong| Failure::environment(format!("{path}/{}: {wrong}", enroll::TICKET)))
}

/// What an earlier process of this directory was about.
struct Recalled {
    /// Silences that the journal holds.
    silences: Vec<Body>,
    /// Accusations that it made: evidence that no sealed ban names.
    accusations: Vec<Evidence>,
}

impl Recalled {
    fn read(home: &Home, journal: &Journal, ledger: &Ledger) -> Result<Self, Failure> {
        let (mut height, mut silences) = (Height(0), Vec::new());
        let mut sealed: BTreeSet<Digest> = BTreeSet::new();
        loop {
            let records = journal.records(height, limits::PULL_RECORDS)?;
            for signed in &records {
                height = height.next();
                match signed.verify(ledger.run()).map(|record| record.body.clone()) {
                    Ok(body @ Body::Silence(_)) => silences.push(body),
                    // Evidence in the directory may be that of a sealed ban: it accuses nobody any more.
                    Ok(Body::Ban(ban)) => drop(sealed.insert(ban.evidence)),
                    _ => {}
                }
            }
            if records.is_empty() {
                break;
            }
        }
        let own = home.evidence()?.into_iter().filter(|digest| !sealed.contains(digest));
        let accusations = own.map(|digest| home.load_evidence(&digest)).collect::<Result<_, _>>()?;
        Ok(Self { silences, accusations })
    }
}
