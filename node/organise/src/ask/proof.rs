//! Two holders that answer one call differently: which of them lies, and what proves it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_compute::Exact;
use muster_core::audit::{Judgement, judge};
use muster_core::codec::encode;
use muster_core::ids::MemberId;
use muster_core::messages::call::Ask;
use muster_core::messages::evidence::{Evidence, FalseAnswer};
use muster_core::messages::wire::{Request, Response};
use muster_core::sign::Signed;
use muster_replica::archive::find_state;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{Brought, Exhibited, KeptState, PeerError};
use muster_store::dataset::Dataset;

use super::holders::Given;
use crate::DATA;
use crate::members::Way;

/// How often an accusation is brought: the steward may be between two rounds, or have much to examine.
const TRIES: u32 = 10;
/// Between two times.
const PAUSE: Duration = Duration::from_millis(500);

/// What it takes to find out who lies, and to say so.
pub(super) struct Court<'a> {
    pub(super) way: &'a Way,
    pub(super) folder: &'a Path,
}

impl Court<'_> {
    /// Writes down and brings to the steward what convicts the liar among two: both answers, where the state is not at hand.
    /// Returns who is known to lie.
    ///
    /// # Errors
    /// [`Failure`] of the disk.
    pub(super) async fn convict(
        &self,
        ask: &Ask,
        signed: &Signed<Ask>,
        given: [&Given; 2],
        tell: &mut dyn FnMut(&str),
    ) -> Outcome<Vec<MemberId>> {
        let judged = self.judged(ask, signed, given);
        let mut liars = Vec::new();
        for (given, judgement) in given.into_iter().zip(judged) {
            let holder = given.holder;
            let word = match judgement {
                Some(Judgement::Guilty { .. }) => {
                    liars.push(holder);
                    "lied"
                }
                Some(Judgement::NotGuilty(_)) => continue,
                // CALL-10: whoever lacks the state lets those decide who have it.
                _ => "contradicts another holder",
            };
            let evidence = against(signed, given);
            let file = self.keep(&evidence)?;
            let file = file.display();
            tell(&format!("{holder} {word}: `muster-verifier check {file}` re-executes it"));
            match self.accuse(evidence).await {
                Ok(()) => tell(&format!("{holder} is accused before the steward")),
                Err(why) => {
                    tell(&format!("the steward does not take it ({why}): any member may bring {file}"))
                }
            }
        }
        Ok(liars)
    }

    /// What the state at hand says of each answer; nothing where there is none.
    fn judged(&self, ask: &Ask, signed: &Signed<Ask>, given: [&Given; 2]) -> [Option<Judgement>; 2] {
        let manifest = &self.way.manifest;
        let found = || {
            let dataset = Arc::new(Dataset::open(&self.folder.join(DATA), &manifest.data).ok()?);
            let mut exact = Exact::new(1, None).ok()?;
            let state = find_state(self.folder, manifest, &dataset, ask.round, &ask.root, &mut exact)?;
            Some((dataset, exact, Arc::new(state)))
        };
        let Some((dataset, mut exact, state)) = found() else { return [None, None] };
        given.map(|given| {
            let states = vec![KeptState::in_memory(ask.root, state.clone())];
            let mut witness = Exhibited::new(states, dataset.clone(), manifest, Brought::default());
            Some(judge(manifest, &against(signed, given), &mut witness, &mut exact))
        })
    }

    /// A file in `evidence/` of the folder. Another process may hold the folder: a file of this name has one content.
    fn keep(&self, evidence: &Evidence) -> Outcome<PathBuf> {
        let folder = self.folder.join("evidence");
        let path = folder.join(format!("{:#}.evidence", evidence.digest()));
        let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, encode(evidence)));
        let failed = |error| Failure::environment(format!("{}: cannot be written ({error})", path.display()));
        written.map_err(failed)?;
        Ok(path)
    }

    async fn accuse(&self, evidence: Evidence) -> Result<(), PeerError> {
        let request = Request::Accuse(evidence);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.way.peers.ask(&self.way.steward, &request).await {
                Ok(Response::Done) => return Ok(()),
                Ok(_) => return Err(PeerError::Unexpected),
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

fn against(signed: &Signed<Ask>, given: &Given) -> Evidence {
    Evidence::Answer(FalseAnswer { ask: signed.clone(), answer: given.answer.clone() })
}
