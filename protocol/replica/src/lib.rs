//! Following a run: what steward, node, verifier and observer share.
//!
//! [`Peers`] asks other members and believes nothing that is not proved. [`Replica`] holds the state and the
//! arithmetic, and re-executes evidence. [`Follower`] keeps ledger and state in step with the steward.
//! [`Gossiping`] spreads what was sealed and hears what contradicts it. [`archive`] reads a finished run and replays it to
//! the last bit.

mod allowance;
pub mod archive;
pub mod backend;
mod bootstrap;
pub mod bundle;
mod contributions;
mod crew;
mod dialling;
pub mod disk;
mod evidence;
pub mod exit;
mod follower;
mod gossip;
mod hearsay;
mod held;
mod held_out;
mod holders;
mod inputs;
mod invitation;
pub mod manual;
pub mod memory;
mod offers;
mod peers;
pub mod process;
mod replica;
mod results;
mod step;
mod stopping;
mod stopwatch;
pub mod text;
mod witness;

pub use allowance::{Allowance, Bounds, parse_gibibytes, parse_rate, parse_rates};
pub use bootstrap::{BootstrapError, fetch_dataset, fetch_ledger, fetch_manifest, follow_ledger, ledger_at};
pub use contributions::{HeldBlocks, Unavailable, WantedContribution};
pub use crew::{Crew, leaf_windows};
pub use evidence::{Unkept, evidence_words, keep_evidence};
pub use follower::{FollowError, Follower, NoticeListener, before_next_try};
pub use gossip::{Gossiping, find_member, moved};
pub use hearsay::{Hearsay, Misbehaviour, SplitView};
pub use held::{HeldState, KeptState, Stepper};
pub use held_out::{HeldOutState, measure_held_out};
pub use holders::holders;
pub use inputs::{InputBlocks, InputSources, PartInputs};
pub use invitation::{invitation, is_invitation};
pub use muster_core::ledger::Event;
pub use offers::{Asker, Offers};
pub use peers::{CommittedContribution, Contact, PeerError, Peers, contact, groups, patience};
pub use replica::{Keeps, Replica};
pub use results::{Results, WantedValues};
pub use stopping::StopRequests;
pub use stopwatch::{Phase, Stopwatch};
pub use witness::{Brought, Contributions, Exhibited};
