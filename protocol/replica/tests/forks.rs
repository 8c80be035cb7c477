//! What a follower keeps of a steward that shows it two records of one height.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::future::{pending, ready};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_core::codec::{List, encode};
use muster_core::ids::{Height, MemberId};
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::manifest::fixture::tiny;
use muster_core::messages::evidence::{Evidence, Misconduct};
use muster_core::messages::record::Body;
use muster_core::messages::wire::{News, Response};
use muster_core::sign::Identity;
use muster_core::state::{ShardRoots, StateRoots};
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::serve;
use muster_replica::{Contact, FollowError, Follower, Peers, Replica};
use muster_store::dataset::{Dataset, SourceText, pack};
use muster_store::home::Home;
use muster_store::journal::Journal;

fn identity(secret: u8) -> Arc<Identity> {
    Arc::new(Identity::from_secret(&[secret; 32]))
}

/// A folder of this process that is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn manifest(corpus: &Path) -> Arc<Manifest> {
    let text = || Ok(SourceText { name: "text".into(), bytes: b"to be or not to be ".repeat(64) });
    let mut manifest = tiny(MemberId([1; 32]), identity(2).id(), 8, 2);
    manifest.data = pack([text()], [text()], corpus, &mut |_| ()).unwrap();
    Arc::new(manifest)
}

/// A steward that answers whatever it is asked with these bytes, and where it is.
async fn steward(manifest: &Manifest, answer: Vec<u8>) -> Contact {
    let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
    let contact = Contact { member: identity(2).id(), addresses: vec![listener.local_addr().to_string()] };
    let endpoint = Endpoint::new(manifest.run(), identity(2));
    let answers = move |_: MemberId, _: Vec<u8>| ready(Ok(answer.clone()));
    tokio::spawn(serve(listener, endpoint, Arc::new(answers), pending()));
    contact
}

#[tokio::test]
async fn audit_13_two_seals_of_one_height_in_one_answer_are_kept_and_nobody_follows_again() {
    let folder = Folder(std::env::temp_dir().join(format!("muster-forks-{}", std::process::id())));
    let corpus = folder.0.join("corpus");
    let manifest = manifest(&corpus);
    let dataset = Arc::new(Dataset::open(&corpus, &manifest.data).unwrap());
    let genesis = || Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
    let roots = genesis().roots().clone();
    let other = StateRoots::from([ShardRoots { step: 1, ..roots.shards[0] }]);
    let ledger = Ledger::new(manifest.clone());
    let seal = |roots| identity(2).sign(manifest.run(), &ledger.record(Body::Open(roots)));
    let news = News {
        records: List::new(vec![seal(roots), seal(other)]).unwrap(),
        newest: Height(2),
        board: 1,
        first_notice: 0,
        notices: List::default(),
    };
    let contact = steward(&manifest, encode(&Response::News(news))).await;
    let home = Home::open(&folder.0.join("home")).unwrap();
    let journal = Arc::new(Journal::open(&home).unwrap());
    let follower = || {
        let peers = Peers::new(Endpoint::new(manifest.run(), identity(3)));
        Follower::new(peers, contact.clone(), genesis(), Some(journal.clone())).unwrap()
    };
    let mut first = follower();
    first.keep_proofs(home.clone()).unwrap();
    let halted = first.step().await.unwrap_err();
    assert!(matches!(halted, FollowError::Misconduct(_, Some(_))), "{halted}");
    assert_eq!(journal.height().unwrap(), Height(1), "what came before is written");
    let again = follower().keep_proofs(home).unwrap_err();
    assert!(matches!(again, FollowError::Convicted { .. }), "{again}");
}

/// Whoever shows it need not wait, and whoever is shown it need not be there: the record is judged by the ledger before it.
#[tokio::test]
async fn audit_13_what_was_shown_of_a_record_that_lies_ahead_convicts_once_the_ledger_is_there() {
    let folder = Folder(std::env::temp_dir().join(format!("muster-ahead-{}", std::process::id())));
    let corpus = folder.0.join("corpus");
    let manifest = manifest(&corpus);
    let dataset = Arc::new(Dataset::open(&corpus, &manifest.data).unwrap());
    let genesis = Replica::genesis(manifest.clone(), dataset, 1, None).unwrap();
    let mut ledger = Ledger::new(manifest.clone());
    let open = |ledger: &Ledger| {
        identity(2).sign(manifest.run(), &ledger.record(Body::Open(genesis.roots().clone())))
    };
    let first = open(&ledger);
    ledger.apply(&first).unwrap();
    let invalid = Evidence::Misconduct(Misconduct::Record(open(&ledger)));
    let records = List::new(vec![first]).unwrap();
    let (newest, board, first_notice, notices) = (Height(1), 1, 0, List::default());
    let news = News { records, newest, board, first_notice, notices };
    let contact = steward(&manifest, encode(&Response::News(news))).await;
    let home = Home::open(&folder.0.join("home")).unwrap();
    home.save_evidence(&invalid).unwrap();
    let journal = Arc::new(Journal::open(&home).unwrap());
    let peers = Peers::new(Endpoint::new(manifest.run(), identity(3)));
    let mut follower = Follower::new(peers, contact, genesis, Some(journal)).unwrap();
    follower.keep_proofs(home).unwrap();
    let halted = follower.step().await.unwrap_err();
    assert!(matches!(halted, FollowError::Convicted { .. }), "{halted}");
}
