//! A newcomer that is given text by strangers: some send other text, some stall.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use muster_core::codec::{Bytes, decode, encode};
use muster_core::ids::MemberId;
use muster_core::ledger::Ledger;
use muster_core::ledger::fixture::{Makers, Newcomer};
use muster_core::limits::SOON;
use muster_core::manifest::Data;
use muster_core::messages::wire::{Request, Response};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::text::{TextHolders, held, outline};
use muster_replica::{Contact, Peers, fetch_dataset};
use muster_store::dataset::{self, Dataset, SourceText};

/// Bytes of a text that is longer than what is fetched at first, by some pages.
const LONG: usize = (64 << 20) + 300_000;

/// How somebody answers who is asked for text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Honest,
    /// A bit of it is changed.
    Poisons,
    Stalls,
    /// It has nothing of the text.
    Lacks,
}

/// Somebody who is asked for text.
struct Host {
    identity: Arc<Identity>,
    address: String,
    asked: Arc<AtomicUsize>,
}

impl Host {
    async fn new(identity: Identity, corpus: &Arc<Dataset>, manner: Manner) -> Self {
        let (identity, asked) = (Arc::new(identity), Arc::new(AtomicUsize::default()));
        let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
        let address = listener.local_addr().to_string();
        let (corpus, counted) = (corpus.clone(), asked.clone());
        let handler = Arc::new(move |_: MemberId, request: Vec<u8>| {
            let (corpus, counted) = (corpus.clone(), counted.clone());
            async move {
                let bytes = match decode(&request).unwrap() {
                    Request::Outline(query) => outline(&corpus, &query),
                    Request::Data(query) => {
                        counted.fetch_add(1, Ordering::Relaxed);
                        let mut bytes = held(&corpus, &query).unwrap();
                        match manner {
                            Manner::Honest => {}
                            Manner::Poisons => bytes[70] ^= 1,
                            Manner::Stalls => std::future::pending().await,
                            Manner::Lacks => return Err(Unanswered::Refused("not held here".into())),
                        }
                        bytes
                    }
                    _ => return Err(Unanswered::Refused("not told".into())),
                };
                Ok(encode(&Response::Bytes(Bytes::new(bytes).unwrap())))
            }
        });
        let endpoint = Endpoint::new(makers().tiny(4, 2).run(), identity.clone());
        tokio::spawn(serve(listener, endpoint, handler, std::future::pending()));
        Self { identity, address, asked }
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::Relaxed)
    }
}

fn makers() -> Makers {
    Makers::of(21, 22)
}

/// A steward with a long text, members of such manners that have it, too, and a newcomer.
struct Stage {
    folder: PathBuf,
    corpus: Arc<Dataset>,
    data: Data,
    steward: Host,
    members: Vec<Host>,
    holders: TextHolders,
}

impl Stage {
    async fn new(name: &str, steward: Manner, members: &[Manner]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("text-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let text = |name: &str, length: usize| {
            let bytes = (0..length).map(|place| b'a' + (place / 11 % 23) as u8).collect();
            [Ok(SourceText { name: name.into(), bytes })]
        };
        let out = folder.join("corpus");
        let data = dataset::pack(text("long", LONG), text("short", 9), &out, &mut |_| ()).unwrap();
        let corpus = Arc::new(Dataset::open(&out, &data).unwrap());
        let identity = |number: usize| Identity::from_secret(&[number as u8 + 1; 32]);
        let steward = Host::new(makers().steward, &corpus, steward).await;
        let mut hosts = Vec::new();
        for (number, manner) in members.iter().enumerate() {
            hosts.push(Host::new(identity(number), &corpus, *manner).await);
        }
        let run = makers().tiny(4, 2).run();
        let peers = Peers::new(Endpoint::new(run, Arc::new(identity(99))));
        let contact = Contact { member: steward.identity.id(), addresses: vec![steward.address.clone()] };
        let holders = TextHolders::new(peers, contact);
        Self { folder, corpus, data, steward, members: hosts, holders }
    }

    /// The members as a ledger has them.
    fn ledger(&self) -> Ledger {
        fn founder(host: &Host) -> Newcomer<'_> {
            Newcomer { founder: true, ..Newcomer::node(&host.identity).at(&host.address) }
        }
        let mut manifest = makers().tiny(4, 2);
        manifest.admission.start_nodes = self.members.len() as u16;
        makers().begin(manifest, self.members.iter().map(founder))
    }

    /// What the newcomer has at first, once it knows the members.
    async fn join(&self) -> Arc<Dataset> {
        let folder = self.folder.join("data");
        let dataset = fetch_dataset(&self.holders, &self.data, &folder, u64::MAX, &mut |_| ()).await.unwrap();
        if !self.members.is_empty() {
            self.holders.know(&self.ledger(), &MemberId([99; 32]));
        }
        dataset
    }

    /// Reads a window as a thread does that computes, and gives how long it took.
    async fn reads(&self, dataset: &Arc<Dataset>, window: u64) -> Duration {
        let (dataset, corpus) = (dataset.clone(), self.corpus.clone());
        let read = move || {
            let begun = Instant::now();
            assert_eq!(dataset.windows(&[window], 1000).unwrap(), corpus.windows(&[window], 1000).unwrap());
            begun.elapsed()
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_10_a_newcomer_begins_with_the_outline_and_asks_members_before_the_steward() {
    let stage = Stage::new("begins", Manner::Honest, &[Manner::Honest]).await;
    let dataset = stage.join().await;
    assert_eq!((stage.steward.asked(), dataset.held()), (0, 0), "no text yet");
    stage.reads(&dataset, 30_000).await;
    assert_eq!((stage.steward.asked(), stage.members[0].asked()), (0, 1));
    let lacking = Stage::new("lacks", Manner::Honest, &[Manner::Lacks, Manner::Lacks]).await;
    let dataset = lacking.join().await;
    lacking.reads(&dataset, 30_000).await;
    let asked = lacking.members.iter().map(Host::asked).sum::<usize>();
    assert_eq!(
        (lacking.steward.asked(), asked),
        (1, 2),
        "members have what they needed, the steward has all"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn data_10_a_poisoned_page_is_refused_and_somebody_else_is_asked() {
    let stage = Stage::new("poisons", Manner::Honest, &[Manner::Poisons]).await;
    let dataset = stage.join().await;
    for window in [30_000, 40_000, 50_000] {
        stage.reads(&dataset, window).await;
    }
    assert_eq!((stage.members[0].asked(), stage.steward.asked()), (1, 3), "whoever lies is not asked again");
    // A steward that has other text than it committed to has nobody beside it.
    let stage = Stage::new("poisoned", Manner::Poisons, &[]).await;
    let dataset = stage.join().await;
    let read = tokio::task::spawn_blocking(move || dataset.window(30_000, 1000).unwrap_err());
    let error = read.await.unwrap().to_string();
    assert!(error.contains("the bytes that were sent are not those of the run"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_10_a_holder_that_stalls_costs_seconds_once_and_is_asked_last() {
    let stage = Stage::new("stalls", Manner::Honest, &[Manner::Stalls]).await;
    let dataset = stage.join().await;
    assert!(stage.reads(&dataset, 30_000).await >= Duration::from_millis(SOON));
    assert!(stage.reads(&dataset, 40_000).await < Duration::from_millis(SOON));
    assert!(stage.reads(&dataset, 50_000).await < Duration::from_millis(SOON));
    assert_eq!((stage.members[0].asked(), stage.steward.asked()), (1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_10_a_page_that_a_power_failure_took_is_fetched_again_though_the_map_has_it() {
    let stage = Stage::new("power", Manner::Honest, &[]).await;
    let dataset = stage.join().await;
    let fetching = dataset.clone();
    tokio::task::spawn_blocking(move || while fetching.fetch_ahead(0).unwrap() {}).await.unwrap();
    assert_eq!(dataset.held(), stage.data.all_bytes());
    drop(dataset);
    stage.steward.asked();
    // The map is whole, and the file has a hole where a page was on its way to the disk.
    let path = stage.folder.join("data/train.bin");
    let mut bytes = fs::read(&path).unwrap();
    bytes[30_000_000..30_100_000].fill(0);
    fs::write(&path, bytes).unwrap();
    let dataset = stage.join().await;
    assert_eq!(stage.steward.asked(), 0);
    stage.reads(&dataset, 30_000).await;
    assert!(stage.steward.asked() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_10_whoever_computes_waits_for_text_no_longer_than_for_a_round() {
    let stage = Stage::new("waits", Manner::Stalls, &[Manner::Stalls, Manner::Stalls]).await;
    let dataset = stage.join().await;
    let read = tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        (dataset.window(30_000, 1000).unwrap_err().to_string(), begun.elapsed())
    });
    let (error, waited) = read.await.unwrap();
    assert!(error.contains("nobody has given the bytes from 29949952 on in time"), "{error}");
    assert!(waited < Duration::from_secs(20), "{waited:?}");
}
