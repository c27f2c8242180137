//! The grounds that an attack is tried on: a container, a jail of root's daemon, a jail of an ordinary user's.

use crate::support::User;

/// A user id without an account; the kernel does not mind.
pub const ANN: User = User { uid: 61_201, gid: 61_201, group: None };

/// Makes three tests of each function, in a module of its name.
macro_rules! on_every_ground {
    ($($test:ident),+ $(,)?) => {
        $(mod $test {
            #[test]
            fn in_a_container() {
                if crate::support::engine() {
                    super::$test();
                }
            }

            #[test]
            fn in_a_jail_of_root() {
                crate::support::jails::in_a_jail(None, super::$test);
            }

            #[test]
            fn in_a_jail_of_a_user() {
                crate::support::jails::in_a_jail(Some(crate::abuse::grounds::ANN), super::$test);
            }
        })+
    };
}
pub(crate) use on_every_ground;

/// The same for what only a daemon of root does: makes two tests of each function.
macro_rules! on_grounds_of_root {
    ($($test:ident),+ $(,)?) => {
        $(mod $test {
            #[test]
            fn in_a_container() {
                if crate::support::engine() {
                    super::$test();
                }
            }

            #[test]
            fn in_a_jail_of_root() {
                crate::support::jails::in_a_jail(None, super::$test);
            }
        })+
    };
}
pub(crate) use on_grounds_of_root;
