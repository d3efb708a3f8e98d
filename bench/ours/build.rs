//! Generates verbwire's stubs of the benchmark's service.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    verbwire_codegen::configure().compile(&["../proto/echo.proto"], &["../proto"])?;
    Ok(())
}
