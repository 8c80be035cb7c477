//! The loss on the held-out text at fixed rounds, whether or not anybody looks, and once more where the run ends. Beside it,
//! for those who look, what the model writes.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use muster_core::ids::Round;
use muster_core::manifest::Manifest;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::process::thread_gives_way;
use muster_replica::{HeldOutState, Replica, memory};
use muster_store::dataset::{Dataset, unigram_bigram};
use muster_view::COMPARED;
use muster_view::event::LogEvent;

use super::sample::Sampler;

/// Measurements in a run, about: each takes the steward as long as some leaves.
const MEASUREMENTS: u32 = 40;
/// Bytes a parameter that must be free for a measurement: the state, which its next step copies.
const TAKEN: u64 = 4;

/// What a state before some round makes of the held-out text, in nats per token.
#[derive(Debug)]
pub(super) struct HeldOutLoss {
    /// The round.
    pub(super) round: Round,
    /// None where the state cannot be measured.
    pub(super) loss: Option<f64>,
    /// At the end of a run that predicts the next token of a text of no great size: what a unigram model and a bigram model make of
    /// the text.
    pub(super) baselines: Option<[f64; 2]>,
    /// What the model wrote, if a sample was due.
    pub(super) sample: Option<LogEvent>,
}

/// Measures in a thread of its own, one state after the other.
pub(super) struct HeldOut {
    rounds: u32,
    parameters: u64,
    /// States that may wait.
    most: usize,
    waiting: VecDeque<HeldOutState>,
    states: Sender<HeldOutState>,
    busy: bool,
    thread: JoinHandle<()>,
}

impl HeldOut {
    /// For a run; `result` is told what was measured.
    ///
    /// # Errors
    /// [`Failure`]: the system gives no thread.
    pub(super) fn start(
        manifest: &Manifest,
        dataset: Arc<Dataset>,
        mut sampler: Option<Sampler>,
        result: impl Fn(HeldOutLoss) + Send + 'static,
    ) -> Outcome<Self> {
        let parameters = manifest.model.parameters();
        let rounds = manifest.training.rounds;
        let compares = manifest.model.decoder().is_some() && manifest.data.bytes <= COMPARED;
        let (states, handed) = channel::<HeldOutState>();
        let measure = move || {
            // No round waits for it, and members on this machine may be at work.
            thread_gives_way();
            for state in handed {
                let (round, loss) = (state.round, state.loss());
                let compared =
                    (round.0 == rounds && compares).then(|| unigram_bigram(&dataset).ok()).flatten();
                let baselines = compared.map(|(unigram, bigram)| [unigram, bigram]);
                let sample = sampler.as_mut().and_then(|sampler| sampler.write(&state));
                drop(state);
                result(HeldOutLoss { round, loss, baselines, sample });
            }
        };
        let thread = Builder::new().name("held-out".to_owned()).spawn(measure);
        let thread =
            thread.map_err(|error| Failure::environment(format!("the steward needs a thread: {error}")))?;
        Ok(Self {
            rounds,
            parameters,
            most: memory::waiting(parameters) as usize,
            waiting: VecDeque::new(),
            states,
            busy: false,
            thread,
        })
    }

    /// Has the state of a replica measured, if it is one of the rounds for that.
    pub(super) fn at(&mut self, replica: &Mutex<Replica>, round: Round) {
        let fits = || memory::available().is_none_or(|free| free > TAKEN * self.parameters);
        if !is_fixed(round, self.rounds) || self.parameters > memory::MEASURED || !fits() {
            return;
        }
        let state = HeldOutState::of(replica);
        if state.round == round {
            enqueue(&mut self.waiting, state, self.most);
            self.hand_over();
        }
    }

    /// A state was measured.
    pub(super) fn done(&mut self) {
        self.busy = false;
        self.hand_over();
    }

    /// Whether a state waits to be measured.
    pub(super) fn is_under_way(&self) -> bool {
        // Of a thread that has failed nothing more comes.
        self.busy && !self.thread.is_finished()
    }

    fn hand_over(&mut self) {
        if !self.busy
            && let Some(state) = self.waiting.pop_front()
        {
            self.busy = self.states.send(state).is_ok();
        }
    }
}

/// Puts one behind those that wait. On a machine so slow that too many would, earlier ones are left out, and the last one never.
fn enqueue<T>(waiting: &mut VecDeque<T>, one: T, most: usize) {
    waiting.push_back(one);
    while waiting.len() > most {
        waiting.pop_front();
    }
}

/// Whether the state before this round is measured in a run of so many.
fn is_fixed(round: Round, rounds: u32) -> bool {
    round.0 == rounds || round.0.is_multiple_of(rounds.div_ceil(MEASUREMENTS).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_fixed_by_the_length_of_the_run_and_the_last_state_is_one_of_them() {
        let fixed =
            |rounds: u32| (0..=rounds).filter(|round| is_fixed(Round(*round), rounds)).collect::<Vec<_>>();
        assert_eq!(fixed(3), [0, 1, 2, 3]);
        assert_eq!(fixed(41)[..3], [0, 2, 4]);
        assert_eq!(fixed(41).last(), Some(&41));
        assert_eq!(fixed(200), (0..=200).step_by(5).collect::<Vec<_>>());
        assert_eq!(fixed(16_000).len(), 41);
    }

    #[test]
    fn where_too_many_states_would_wait_the_newest_ones_do() {
        let mut waiting = VecDeque::new();
        (0..5).for_each(|round| enqueue(&mut waiting, round, 2));
        assert_eq!(waiting, [3, 4]);
    }
}
