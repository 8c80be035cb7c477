//! Finding the state that evidence is about in a folder, without re-executing the run.

use std::borrow::Borrow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use muster_compute::Exact;
use muster_core::assign;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Leaf, Round, Row};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::regime::Regime;
use muster_core::state::{Arithmetic, State, Update};
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::reading;

use crate::held::{HeldState, Stepper};
use crate::stopwatch::Stopwatch;

/// The state before a round from a folder's `states/` and `updates/`, if they lead to one with this root: nothing in
/// the folder need be believed. Any member's folder will do, also while the run goes on.
pub fn find_state(
    folder: &Path,
    manifest: &Manifest,
    dataset: &Arc<Dataset>,
    round: Round,
    root: &Digest,
    arithmetic: &mut Exact,
) -> Option<State> {
    // ROUND-28: what leaves of a round are computed on may be the state before the round before.
    let behind = Regime::of(manifest).computes_behind();
    let earlier = round.0.checked_sub(1).map(Round).filter(|_| behind);
    let rounds = [round].into_iter().chain(earlier);
    let mut before = |round| find_before(folder, manifest, dataset, round, root, arithmetic);
    rounds.into_iter().find_map(&mut before)
}

/// The same of the state before just this round.
fn find_before(
    folder: &Path,
    manifest: &Manifest,
    dataset: &Arc<Dataset>,
    round: Round,
    root: &Digest,
    arithmetic: &mut Exact,
) -> Option<State> {
    let kept = reading::states(folder).unwrap_or_default();
    let layout = Layout::of_run(manifest);
    let starts = kept.into_iter().rev().filter(|start| *start <= round);
    for start in starts.map(Some).chain([None]) {
        let first = start.unwrap_or_default();
        let whole = (first.0..round.0).all(|round| reading::has_aggregate(folder, Round(round)));
        if !whole {
            continue;
        }
        let state = match start {
            Some(start) => match reading::state(folder, &layout, start) {
                // A member's own shards: the roots of the others are beside them.
                Ok((state, roots)) if start == round && roots.root() == *root => return Some(state),
                read => read.ok().map(|(state, _)| state),
            },
            None => initial(manifest, dataset, arithmetic).ok(),
        };
        let state = state.and_then(|state| steps(folder, manifest, state, first..round, arithmetic));
        if let Some(state) = state.filter(|state| state.root() == *root) {
            return Some(state);
        }
    }
    None
}

/// The state at the beginning of a run. The given parameters, where there are some, must be of the model's length.
pub(crate) fn initial(
    manifest: &Manifest,
    dataset: &Dataset,
    arithmetic: &mut Exact,
) -> Result<State, Misuse> {
    let seed = assign::calibration_seed(manifest.run());
    let indices = assign::windows(&seed, Leaf(0), manifest.training.leaf_windows, manifest.windows());
    let unread = |error: StoreError| Misuse(error.to_string());
    let windows = dataset.windows(&indices, manifest.model.sequence).map_err(unread)?;
    match dataset.given().map_err(unread)? {
        None => Ok(arithmetic.initial(manifest, &windows)),
        Some(given) if given.len() as u64 == manifest.model.parameters() => {
            Ok(arithmetic.initial_from(manifest, given, &windows))
        }
        Some(_) => Err(Misuse("the given parameters are not those of this model".into())),
    }
}

/// Applies the aggregates of these rounds; `None` when one is damaged or of another model.
fn steps(
    folder: &Path,
    manifest: &Manifest,
    state: State,
    rounds: Range<Round>,
    arithmetic: &mut Exact,
) -> Option<State> {
    let layout = Layout::of_run(manifest);
    if !state.is_whole(&layout) {
        return None;
    }
    let mut held = HeldState::whole(state);
    for round in rounds.start.0..rounds.end.0 {
        let steps = reading::steps(folder, &layout, Round(round)).ok()??;
        advance(arithmetic, manifest, &mut held, steps).ok()?;
    }
    Some(held.state)
}

/// Takes a step of a state of which everything is in memory.
///
/// # Errors
/// That of an update. The state is of no use any more then.
pub fn advance<U: Borrow<Update>>(
    arithmetic: &mut Exact,
    manifest: &Manifest,
    held: &mut HeldState,
    updates: impl IntoIterator<Item = Result<U, StoreError>>,
) -> Result<(), StoreError> {
    let rows: Vec<Row> = (0..manifest.model.rows()).map(Row).collect();
    let stopwatch = Stopwatch::default();
    let with = Stepper { manifest, arithmetic, row_files: None, stopwatch: &stopwatch };
    held.advance(with, &rows, updates)
}
