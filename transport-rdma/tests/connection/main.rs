//! Connections over the software NIC, end to end.

mod back_pressure;
mod dying;
mod ending;
mod establishing;
mod faults;
mod gathered;
mod giant;
mod isolation;
mod long;
mod long_faults;
mod order;
mod overrun;
mod pair;
mod pressure;
mod settings;
mod shared;
mod sharing;
mod standing;
