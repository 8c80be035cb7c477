//! What the end-to-end tests share: the simulators, and real processes that are killed when dropped.

pub mod cases;
pub mod detection;
pub mod evidence;
pub mod floods;
pub mod harm;
pub mod imports;
pub mod kept;
pub mod onlooker;
pub mod oracle;
pub mod parallel;
pub mod processes;
pub mod schema;
pub mod settings;
pub mod sim;
pub mod timed;
pub mod told;
