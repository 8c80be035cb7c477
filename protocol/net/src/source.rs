//! Where a connection comes from, as shares count it.

use std::net::{IpAddr, Ipv6Addr};

/// CHAN-12: a source is an IPv4 address, or an IPv6 network of 64 bits, all of which one stranger may control.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Source(IpAddr);

impl Source {
    /// That of an address.
    pub fn of(address: IpAddr) -> Self {
        Self(source(address))
    }

    /// That of whoever comes through the relay under this key: a member has one (CHAN-28). An address that nobody has.
    pub(crate) fn behind(key: &[u8; 32]) -> Self {
        let start = u128::from_be_bytes(*key.first_chunk().expect("longer than half of it"));
        // fd00::/8, which no host out there has.
        Self(source(Ipv6Addr::from_bits((0xfd << 120) | (start >> 8)).into()))
    }

    /// The address that stands for all of it.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

/// The address that stands for all of a source.
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
    fn chan_12_an_ipv6_network_is_one_source() {
        let of = |address: &str| Source::of(address.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
    }
}
