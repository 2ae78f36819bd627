package commandline

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// ManPage returns the program's man page (section 1) in roff, with the flags and the manual of each command.
func ManPage(app *kong.Application, version string) string {
	var page strings.Builder
	name := roff(app.Name)
	fmt.Fprintf(&page, ".TH %q 1 %q %q\n.SH NAME\n%s \\- %s\n", strings.ToUpper(app.Name), "", app.Name+" "+version, name, roff(app.Help))
	fmt.Fprintf(&page, ".SH SYNOPSIS\n.B %s\n.I command\n.RI [ flags ]\n.SH OPTIONS\n", name)
	writeFlags(&page, append(flagsOf(app, app.Node), app.HelpFlag))
	page.WriteString(".SH COMMANDS\n")
	for _, command := range app.Leaves(true) {
		fmt.Fprintf(&page, ".SS %s\n%s\n", roff(command.Summary()), roff(command.Help))
		if command.Detail != "" {
			fmt.Fprintf(&page, ".PP\n%s\n", roff(command.Detail))
		}
		writeFlags(&page, flagsOf(app, command))
		if text := manualOf(app, command); text != "" {
			fmt.Fprintf(&page, ".PP\n.nf\n%s.fi\n", roff(text))
		}
	}
	return page.String()
}

func writeFlags(page *strings.Builder, flags []*kong.Flag) {
	for _, flag := range flags {
		short, value := "", ""
		if flag.Short != 0 {
			short = fmt.Sprintf("-%c, ", flag.Short)
		}
		if !flag.IsBool() {
			value = "=" + flag.FormatPlaceHolder()
		}
		fmt.Fprintf(page, ".TP\n.B %s\n%s\n", roff(short+"--"+flag.Name+value), roff(flag.Help))
	}
}

// escaped replaces characters that have a special meaning in roff.
var escaped = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'", "'", `\(aq`)

// roff escapes plain text for a man page.
func roff(text string) string {
	return strings.TrimPrefix(escaped.Replace("\n"+text), "\n")
}
