//! The command line: arguments in, text and exit codes out. One file per subcommand; no logic
//! beyond arguments and printing.

mod args;
mod bench;
mod cp;
mod create;
mod doctor;
mod export;
mod gc;
mod interrupt;
mod inventory;
mod list;
mod plan;
mod policy;
mod progress;
mod rm;
#[cfg(feature = "mlx")]
mod run;
#[cfg(feature = "mlx")]
mod serve;
mod show;
mod ui;
mod update;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::fault::{Code, Faults};

/// Turn a Hugging Face model into a small, fast and correct one for MLX, by rules you can read.
#[derive(Parser)]
#[command(name = "lathe", version, propagate_version = true, max_term_width = 100)]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(create::Create),
    #[cfg(feature = "mlx")]
    Run(run::Run),
    #[cfg(feature = "mlx")]
    Serve(serve::Serve),
    List(list::List),
    Show(show::Show),
    Rm(rm::Rm),
    Cp(cp::Cp),
    Update(update::Update),
    Verify(verify::Verify),
    Gc(gc::Gc),
    Policy(policy::Policy),
    Inventory(inventory::Inventory),
    Plan(plan::Plan),
    Doctor(doctor::Doctor),
    Export(export::Export),
    Bench(bench::Bench),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Runs the program. Exit codes: 0 done, 1 the job failed, 2 wrong usage, 130 interrupted.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if !error.use_stderr() || !ui::wants_json() {
                let _ = error.print();
            } else {
                ui::print_usage(&error);
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ui::fail(&failure),
    }
}

fn run(command: Command) -> Result<(), ui::Failure> {
    match command {
        Command::Create(args) => create::run(&args),
        #[cfg(feature = "mlx")]
        Command::Run(args) => run::run(&args),
        #[cfg(feature = "mlx")]
        Command::Serve(args) => serve::run(&args),
        Command::List(args) => list::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Cp(args) => cp::run(&args),
        Command::Update(args) => update::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Gc(args) => gc::run(&args),
        Command::Inventory(args) => inventory::run(&args),
        Command::Policy(args) => policy::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lathe", &mut script);
            ui::print(String::from_utf8_lossy(&script).trim_end());
            Ok(())
        }
    }
}

/// The exit code that faults end with.
fn exit_code(faults: &Faults) -> u8 {
    match faults.0.first().map(|fault| fault.code) {
        Some(Code::Usage) => 2,
        Some(Code::Interrupted) => 130,
        _ => 1,
    }
}
