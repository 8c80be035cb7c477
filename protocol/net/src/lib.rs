//! Endpoints of the Muster channel: no rules of the protocol, only bytes of known members.
//!
//! Low to high: the [`capacity`] is what the system lets this process have open, and [`shares`] divide it among members,
//! strangers and sources; an [`endpoint`] is who we are; a [`connection`] carries messages to a known peer; a [`listener`]
//! bounds who connects; a [`client`] and [`serve`] exchange requests for responses; a [`pool`] keeps clients; members behind home
//! routers are reached through [`punch`] and [`relay`], past the steward's relay by a `bypass`. Beside them,
//! a [`swarm`] finds members and spreads hints. A [`purse`] bounds what somebody uses over time, a [`rate`] what this process sends and takes, and [`reach`] says from where
//! an address can be dialled; an [`address`] of this machine is found here, and its [`clock`] judged. Everything that a peer can
//! make grow or wait has a bound: its share, message lengths, queues, and the [`endpoint::Timeouts`].

pub mod address;
mod bypass;
pub mod capacity;
pub mod client;
pub mod clock;
pub mod connection;
pub mod endpoint;
pub mod error;
mod frame_reader;
pub mod listener;
mod meeting;
pub mod name;
mod pinned;
pub mod pool;
pub mod punch;
pub mod purse;
pub mod rate;
pub mod reach;
pub mod relay;
pub mod seats;
pub mod serve;
pub mod shares;
pub mod source;
pub mod swarm;
mod ways;
mod wire;
