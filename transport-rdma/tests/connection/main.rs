//! Connections over the software NIC, end to end.

mod back_pressure;
mod ending;
mod establishing;
mod faults;
mod grants;
mod long;
mod long_faults;
mod order;
mod pair;
mod raw;
mod shared;
mod violations;
