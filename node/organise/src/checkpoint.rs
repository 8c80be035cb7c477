//! A model as it was before some round, read from a folder that another process may be using.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_compute::Exact;
use muster_core::codec::decode;
use muster_core::ids::{Round, Row, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::State;
use muster_replica::archive::advance;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{HeldState, Replica};
use muster_store::dataset::Dataset;
use muster_store::reading;

use crate::ranking::{ranked, router};
use crate::{DATA, MANIFEST};

/// A manifest and a state, or the shards of one that a node holds.
pub struct Checkpoint {
    /// The agreement of the run.
    pub manifest: Manifest,
    /// The round that the state is before.
    pub round: Round,
    /// The shards that the folder holds, without moments.
    pub state: State,
    /// Where they come from.
    pub folder: PathBuf,
}

impl Checkpoint {
    /// The state before `round`, or the newest, of a run's folder or a member's data directory: the last one written
    /// down before it, with the aggregates of the rounds since.
    ///
    /// # Errors
    /// [`Failure`] naming the folder and the rounds that it has.
    pub fn open(folder: &Path, round: Option<u32>, exact: &mut Exact) -> Outcome<Self> {
        let path = folder.join(MANIFEST);
        let bytes = reading::manifest(folder).map_err(|error| {
            let advice = "name a run's folder, or the data directory of a member that has finished";
            Failure::environment(format!("{error} ({advice})"))
        })?;
        let manifest: Manifest =
            decode(&bytes).map_err(|reject| Failure::environment(format!("{}: {reject}", path.display())))?;
        manifest.check().map_err(|misuse| Failure::environment(format!("{}: {misuse}", path.display())))?;
        let (kept, layout) = (reading::states(folder)?, Layout::of_run(&manifest));
        let wanted = round.map_or(Round(u32::MAX), Round);
        let start = kept.iter().rev().find(|start| **start <= wanted);
        let (mut reached, state) = match start {
            Some(start) => (*start, fitting(folder, reading::state(folder, &layout, *start)?.0, &manifest)?),
            None if kept.is_empty() => (Round(0), beginning(folder, &manifest)?),
            None => return Err(none(folder, round, &kept)),
        };
        let mut held = HeldState::whole(state);
        while reached < wanted {
            let Some(steps) = reading::steps(folder, &layout, reached)? else { break };
            advance(exact, &manifest, &mut held, steps)?;
            reached = reached.next();
        }
        let mut state = held.state;
        if round.is_some_and(|round| reached != Round(round)) {
            return Err(none(folder, round, &kept));
        }
        // Nothing is trained on from here, and moments are twice as large as the model.
        (state.first, state.second) = Default::default();
        Ok(Self { manifest, round: reached, state, folder: folder.to_owned() })
    }

    /// The rows of experts that the folder holds; row 0 of a model that has none.
    pub fn rows(&self) -> Vec<Row> {
        if self.manifest.model.rows() == 1 {
            return vec![Row(0)];
        }
        self.state.held().filter_map(ShardId::row).collect()
    }

    /// How many rows the run's state has, wherever they are.
    pub fn rows_of_run(&self) -> u16 {
        self.manifest.model.rows_after(self.state.step())
    }

    /// The parameters of the trunk and a row, in the canonical layout.
    ///
    /// # Errors
    /// [`Failure`] naming the rows that the folder holds.
    pub fn path(&self, row: Row) -> Outcome<Cow<'_, [f32]>> {
        if !self.rows().contains(&row) {
            return Err(self.without(row));
        }
        let path = Layout::of_run(&self.manifest).path(row).collect::<Vec<_>>();
        // Often there is nothing else, and a copy is as large as the model.
        if self.state.held().eq(path.iter().copied()) {
            return Ok(Cow::from(&*self.state.parameters));
        }
        Ok(self.state.select(path).parameters.into_vec().into())
    }

    /// Of the rows that the folder holds, the one that suits a text best, by the router of the run (CALL-12).
    ///
    /// # Errors
    /// [`Failure`] naming the router's file that is missing or not the run's, or the folder that holds no row.
    pub fn best_row(&self, text: &[u32]) -> Outcome<Row> {
        let held = self.rows();
        match held[..] {
            [] => Err(self.without(Row(0))),
            // There is nothing to choose: a node's directory need not have the router.
            [row] => Ok(row),
            _ => {
                let router = router(&self.manifest, &self.folder)?;
                let order = ranked(&router, text, self.manifest.model.sequence as usize);
                let best = order.into_iter().map(|ranked| ranked.row).find(|row| held.contains(row));
                best.ok_or_else(|| self.without(Row(0)))
            }
        }
    }

    fn without(&self, row: Row) -> Failure {
        let held: Vec<String> = self.rows().iter().map(ToString::to_string).collect();
        let run = match (self.rows_of_run(), self.manifest.model.rows()) {
            (1, 1) => "the model has row 0 alone".to_owned(),
            (1, _) => "the model had row 0 alone then".to_owned(),
            (all, _) => format!("the model has rows 0 to {}", all - 1),
        };
        let here = match &held[..] {
            [] => ", and the trunk alone is here: this member holds no row".to_owned(),
            _ if held.len() < usize::from(self.rows_of_run()) => {
                format!(", of which a node holds its own: here is row {}", held.join(", "))
            }
            _ => String::new(),
        };
        let (folder, round) = (self.folder.display(), self.round);
        Failure::environment(format!("{folder}: has no row {row} before round {round}; {run}{here}"))
    }
}

/// A state of the manifest's model: folders come from strangers too.
fn fitting(folder: &Path, state: State, manifest: &Manifest) -> Outcome<State> {
    if !state.is_whole(&Layout::of_run(manifest)) {
        return Err(foreign(folder, "a state"));
    }
    Ok(state)
}

fn foreign(folder: &Path, what: &str) -> Failure {
    Failure::environment(format!("{}: {what} is of another model than manifest.bin says", folder.display()))
}

/// The state before the first round, which follows from manifest and text.
fn beginning(folder: &Path, manifest: &Manifest) -> Outcome<State> {
    let dataset = Arc::new(Dataset::open(&folder.join(DATA), &manifest.data)?);
    let replica = Replica::genesis(Arc::new(manifest.clone()), dataset, 1, None)?;
    Ok(replica.state().clone())
}

fn none(folder: &Path, round: Option<u32>, kept: &[Round]) -> Failure {
    let which = round.map_or_else(String::new, |round| format!(" before round {round}"));
    let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
    let has = if kept.is_empty() {
        "none is kept yet".into()
    } else {
        format!("kept are those before rounds {}", kept.join(", "))
    };
    Failure::environment(format!("{}: has no state{which}; {has}", folder.display()))
}

#[cfg(test)]
mod tests {
    use muster_core::ids::ShardId;
    use muster_core::state::{Arithmetic, ShardStep, Update};
    use muster_store::home::Home;

    use super::*;
    use crate::config::Settings;

    fn manifest() -> Manifest {
        let nobody = muster_core::ids::MemberId([0; 32]);
        let makers = crate::config::Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
        let digest = muster_core::ids::Digest::default();
        let data = muster_core::manifest::Data {
            root: digest,
            bytes: 4096,
            held_out_root: digest,
            held_out_bytes: 0,
            tokeniser: muster_core::manifest::Tokeniser::Bytes,
            start: muster_core::manifest::Start::Drawn,
            router: None,
        };
        Settings::default().manifest(&makers, data).unwrap()
    }

    #[test]
    fn a_state_of_another_model_is_refused() {
        let manifest = manifest();
        let mut state = Exact::new(1, None).unwrap().initial(&manifest, &[]);
        assert!(fitting(Path::new("here"), state.clone(), &manifest).is_ok());
        state.parameters.append_zeros(1);
        let failure = fitting(Path::new("here"), state, &manifest).unwrap_err();
        assert!(failure.message.contains("here: a state is of another model"), "{failure}");
    }

    #[test]
    fn an_aggregate_of_another_model_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (manifest, mut exact) = (manifest(), Exact::new(1, None).unwrap());
        let home = Home::open(directory.path()).unwrap();
        home.write_file(MANIFEST, &manifest.bytes()).unwrap();
        let state = exact.initial(&manifest, &[]);
        home.save_state(Round(0), &state, &state.roots()).unwrap();
        let layout = Layout::of_run(&manifest);
        let step = ShardStep { shard: ShardId::TRUNK, round: Round(0) };
        let mut open = |layout: &Layout| {
            let update = Update::whole(layout, vec![1.0; layout.parameters()]);
            home.save_update(layout, Round(0), &update, &[step]).unwrap();
            Checkpoint::open(directory.path(), None, &mut exact)
        };
        assert_eq!(open(&layout).unwrap().round, Round(1));
        for (layers, hidden, what) in [(1, 0, "it is of another model"), (0, 1, "it has another length")] {
            let mut model = manifest.model.clone();
            (model.layers, model.hidden) = (model.layers + layers, model.hidden + hidden);
            let failure = open(&Layout::of(&model)).err().unwrap();
            assert!(failure.message.contains(&format!("0.update: is damaged ({what})")), "{failure}");
        }
        let mut update = Update::whole(&layout, vec![1.0; layout.parameters()]);
        update.blocks.pop();
        let error = home.save_update(&layout, Round(0), &update, &[step]).unwrap_err();
        assert!(error.to_string().contains("a shard of the aggregate does not come"), "{error}");
    }
}
