//! Strangers' bytes, connections and answers, on the ports of real processes: nobody falls over, nobody is blamed, and
//! nobody believes what does not check.

mod between;
mod caller;
mod flood;
mod garbage;
mod poison;
mod shortage;
mod siege;
