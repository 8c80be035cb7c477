//! Going back to a state that a replica has kept.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::path::PathBuf;
use std::sync::Arc;

use muster_core::codec::Real;
use muster_core::ids::{MemberId, Round};
use muster_core::manifest::Rollback;
use muster_core::manifest::fixture::tiny;
use muster_core::state::{StateRoots, Update};
use muster_replica::Replica;
use muster_store::dataset::{Dataset, SourceText, pack};

/// A folder of this process, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("muster-rewind-{name}-{}", std::process::id()));
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A run that may go back, or not, after three updates; the roots of its four states.
fn trained(name: &str, rollback: Rollback) -> (Replica, Vec<StateRoots>) {
    let folder = Folder::new(name);
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 8, 2);
    let text = || Ok(SourceText { name: "text".into(), bytes: b"to be or not to be ".repeat(64) });
    manifest.data = pack([text()], [text()], &folder.0, &mut |_| ()).unwrap();
    (manifest.rollback, manifest.retention.states) = (rollback, 2);
    let dataset = Arc::new(Dataset::open(&folder.0, &manifest.data).unwrap());
    let mut replica = Replica::genesis(Arc::new(manifest), dataset, 1, None).unwrap();
    let layout = replica.layout().clone();
    let mut roots = vec![replica.roots().clone()];
    for step in 1u8..4 {
        let values = vec![f32::from(step); layout.parameters()];
        roots.push(replica.apply([Ok(Update::whole(&layout, values))], None).unwrap());
    }
    (replica, roots)
}

fn limit() -> Rollback {
    Rollback { limit: Real::new(0.5).unwrap(), most_rounds: 4, spacing: 4 }
}

#[test]
fn state_6_a_replica_goes_back_to_its_own_copy_moments_included() {
    let (mut replica, roots) = trained("back", limit());
    assert!(replica.rewind(&roots[1], Round(4)).unwrap());
    assert_eq!((replica.state().roots(), replica.round()), (roots[1].clone(), Round(4)));
    assert_eq!(replica.state().step(), roots[1].step(), "the step goes back, too");
    assert!(replica.state_at(&roots[2].root()).is_some(), "later states stay for audits");
}

/// Outcomes before a Rewind may never be applied: what they led to is taken back all the same.
#[test]
fn state_6_whoever_has_not_gone_on_yet_stays_where_it_is() {
    for limits in [limit(), Rollback::never()] {
        let (mut replica, roots) = trained("stayed", limits);
        let kept = replica.state_at(&roots[2].root()).is_some();
        assert!(replica.rewind(&roots[3], Round(9)).unwrap());
        assert_eq!((replica.state().roots(), replica.round()), (roots[3].clone(), Round(9)));
        assert_eq!(replica.state_at(&roots[2].root()).is_some(), kept, "nothing is forgotten for it");
    }
}

#[test]
fn state_6_it_goes_back_to_nothing_that_it_has_not_kept_whole() {
    let (mut replica, roots) = trained("forgotten", limit());
    assert!(!replica.rewind(&roots[0], Round(4)).unwrap(), "two states before the newest are kept");
    assert_eq!(replica.state().roots(), roots[3]);
    let (mut replica, roots) = trained("never", Rollback::never());
    assert!(!replica.rewind(&roots[2], Round(4)).unwrap(), "nothing goes back in this run");
    assert!(replica.state_at(&roots[2].root()).is_some_and(|kept| !kept.has_moments()));
    assert_eq!((replica.state().roots(), replica.round()), (roots[3].clone(), Round(3)));
}
