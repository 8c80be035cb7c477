//! Seats: a bounded number of connections, in total and from one source.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use muster_core::lock::lock;

/// How many connections are open at once, those in the handshake included.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimit {
    /// From everywhere.
    pub total: usize,
    /// From one IPv4 address or one IPv6 network of 64 bits.
    pub per_source: usize,
}

impl Default for ConnectionLimit {
    /// 512 and 64.
    fn default() -> Self {
        Self { total: 512, per_source: 64 }
    }
}

/// The seats that are taken, by source.
pub(crate) struct ConnectionSeats {
    admission: ConnectionLimit,
    taken: Mutex<BTreeMap<IpAddr, usize>>,
}

impl ConnectionSeats {
    pub(crate) fn new(admission: ConnectionLimit) -> Arc<Self> {
        Arc::new(Self { admission, taken: Mutex::default() })
    }
}

/// The right to one open connection, given back on drop.
pub(crate) struct ConnectionSeat {
    seats: Arc<ConnectionSeats>,
    address: SocketAddr,
}

impl ConnectionSeat {
    /// `None` where none is left for this source.
    pub(crate) fn take(seats: &Arc<ConnectionSeats>, address: SocketAddr) -> Option<Self> {
        let mut taken = lock(&seats.taken);
        // In all before by source: a flood from many sources leaves no entry behind.
        if taken.values().sum::<usize>() >= seats.admission.total {
            return None;
        }
        let here = taken.entry(source(address.ip())).or_default();
        if *here >= seats.admission.per_source {
            return None;
        }
        *here += 1;
        Some(Self { seats: seats.clone(), address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        let mut taken = lock(&self.seats.taken);
        let source = source(self.address.ip());
        if let Some(here) = taken.get_mut(&source) {
            *here -= 1;
            // Else the map would remember every address that ever connected.
            if *here == 0 {
                taken.remove(&source);
            }
        }
    }
}

/// CHAN-12: a source is an IPv4 address, or an IPv6 network of 64 bits, all of which one stranger may control.
pub fn source(address: IpAddr) -> IpAddr {
    // An IPv4 address written as IPv6 is no second source.
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_counted_in_total_and_by_source() {
        let seats = ConnectionSeats::new(ConnectionLimit { total: 3, per_source: 2 });
        let take = |address: &str| ConnectionSeat::take(&seats, address.parse().unwrap());
        let first = take("10.0.0.1:1").unwrap();
        let _second = take("10.0.0.1:2").unwrap();
        assert!(take("10.0.0.1:3").is_none(), "per source");
        assert!(take("[::ffff:10.0.0.1]:3").is_none(), "the same source in IPv6 dress");
        let third = take("[2001:db8::1]:1").unwrap();
        assert!(take("10.0.0.2:1").is_none(), "in total");
        drop((first, third));
        assert!(take("10.0.0.1:3").is_some());
        assert_eq!(seats.taken.lock().unwrap().len(), 1, "a source without seats leaves no trace");
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let of = |address: &str| source(address.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
