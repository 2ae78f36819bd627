package main

import (
	"slices"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
)

// Manual implements commandline.Documented.
func (*commandLine) Manual() map[string]commandline.Entry {
	return map[string]commandline.Entry{
		"start-etcd": {
			Text: "Each of these flags has an environment variable, ETCD_WRAPPER_ and its name in capitals: --log-level is ETCD_WRAPPER_LOG_LEVEL. " +
				"It counts if it is not empty and the flag is not set.",
			Examples: []commandline.Example{
				{Text: "Run a single member on loopback, with its data in ./data", Line: "start-etcd --standalone --volume-dir=data"},
				{Text: "Run a member with backups", Line: "start-etcd --standalone --backup-store=file:///backups"},
			},
			Statuses: startStatuses(),
		},
		"status": {
			Text: "With -o json, print the document of GET /lifecycle. Port and volume may also be set by the environment variables of start-etcd.",
			Examples: []commandline.Example{
				{Text: "Show this member", Line: "status"},
				{Text: "Show all members in one table", Line: "status --cluster"},
			},
			Statuses: []commandline.Status{
				statusOf(exitcode.Clean, "ready"), usage, statusOf(exitcode.NoAnswer, "no wrapper answers on the port"),
				statusOf(exitcode.NotTold, "the answer cannot be read or printed"), statusOf(exitcode.MemberNotReady, "not ready"), interrupted,
			},
		},
		"defrag": {
			Text: "Ignores --defrag-threshold. Fails while something is in the way, such as a snapshot that is being read, the turn of another member, " +
				"or an expected pause longer than the threshold allows. The error names it.",
			Examples: []commandline.Example{
				{Text: "Defragment this member and show the progress", Line: "defrag"},
				{Text: "Print what was freed as JSON", Line: "defrag -o json"},
			},
			Statuses: []commandline.Status{
				statusOf(exitcode.Clean, "defragmented"), statusOf(exitcode.ToolFailed, "not defragmented"), usage,
				statusOf(exitcode.NoAnswer, "no wrapper answers on the port"), statusOf(exitcode.NotTold, "the answer cannot be read"),
			},
		},
		"backup list": {
			Text: storeText,
			Examples: []commandline.Example{
				{Text: "List the backups of this member's store", Line: "backup list"},
				{Text: "List those of another store as JSON", Line: "backup list --backup-store=file:///backups -o json"},
			},
			Statuses: backupStatuses(statusOf(exitcode.NotKept, "the store has no backups")),
		},
		"backup now": {
			Text: "The backup goes into the store of the running wrapper.",
			Examples: []commandline.Example{
				{Text: "Make a full snapshot and show the progress", Line: "backup now"},
				{Text: "Print its name and revision as JSON", Line: "backup now -o json"},
			},
			Statuses: []commandline.Status{
				done, failure, usage, statusOf(exitcode.NoAnswer, "no wrapper answers, or it makes no backups"), interrupted,
			},
		},
		"backup verify": {
			Text: storeText + " Needs as much room in --scratch-dir as the database.",
			Examples: []commandline.Example{
				{Text: "Restore the newest full snapshot", Line: "backup verify"},
				{Text: "Restore the state of an hour ago", Line: "backup verify --to=time:-1h"},
			},
			Statuses: backupStatuses(notKept),
		},
		"backup export": {
			Text: storeText,
			Examples: []commandline.Example{
				{Text: "Export the latest revision", Line: "backup export etcd.snapshot"},
				{Text: "Export a certain revision", Line: "backup export --to=revision:12345 etcd.snapshot"},
			},
			Statuses: backupStatuses(notKept),
		},
		"backup get": {
			Text: storeText + " Needs as much room in --scratch-dir as the database.",
			Examples: []commandline.Example{
				{Text: "Print a key as it was a quarter of an hour ago", Line: "backup get --at=time:-15m /config/a"},
				{Text: "Put all keys below a prefix back", Line: "backup get --at=revision:12345 --prefix --script /config/ | sh"},
			},
			Statuses: backupStatuses(statusOf(exitcode.NotKept, "the moment is not kept, or the key did not exist")),
		},
		"backup diff": {
			Text: storeText + " Needs twice as much room in --scratch-dir as the database.",
			Examples: []commandline.Example{
				{Text: "Show what changed within the last hour", Line: "backup diff --from=time:-1h"},
				{Text: "Show what changed below a prefix between two revisions", Line: "backup diff --from=revision:10 --to=revision:20 --prefix=/config/"},
			},
			Statuses: backupStatuses(notKept),
		},
		"backup copy": {
			Text: storeText + " Deletes nothing in the copy. Refuses a place that has backups which are not a copy of this store.",
			Examples: []commandline.Example{
				{Text: "Copy the store once", Line: "backup copy --to-store=file:///mnt/etcd-main"},
				{Text: "Keep a copy up to date until Ctrl-C", Line: "backup copy --to-store=s3://elsewhere/etcd-main --follow=30s"},
			},
			Statuses: backupStatuses(),
		},
		"backup prune": {
			Text: storeText + " If you set --backup-store, set --backup-keep too: the default might delete more than start-etcd keeps.",
			Examples: []commandline.Example{
				{Text: "Show what would be deleted, and why", Line: "backup prune --dry-run"},
				{Text: "Delete it", Line: "backup prune"},
			},
			Statuses: backupStatuses(statusOf(exitcode.InDoubt, "nothing is deleted, because something is uncertain")),
		},
		"restore": {
			Text: storeText + " The result is a new cluster. To restore a running cluster from its own store, start it with --restore-to instead.",
			Examples: []commandline.Example{
				{Text: "Restore the latest revision", Line: "restore --data-dir=/var/lib/etcd/new.etcd"},
				{Text: "Restore a stock etcd snapshot", Line: "restore --snapshot=etcd.snapshot --data-dir=/var/lib/etcd/new"},
			},
			Statuses: backupStatuses(notKept),
		},
		"etcdctl": {
			Text: "Arguments and exit status are those of etcdctl.",
			Examples: []commandline.Example{
				{Text: "List the members", Line: "etcdctl member list -w table"},
				{Text: "Read a key", Line: "etcdctl get /config/a"},
			},
		},
		"etcdutl": {
			Text: "Arguments and exit status are those of etcdutl.",
			Examples: []commandline.Example{
				{Text: "Inspect a snapshot", Line: "etcdutl snapshot status etcd.snapshot -w table"},
				{Text: "Defragment the data of an etcd that does not run", Line: "etcdutl defrag --data-dir=/var/lib/etcd/new.etcd"},
			},
		},
		"version": {
			Examples: []commandline.Example{{Text: "Print the versions", Line: "version"}, {Text: "Print them as JSON", Line: "version -o json"}},
			Statuses: []commandline.Status{done, usage},
		},
		"completion": {
			Text: "For each new shell, put the line into ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.",
			Examples: []commandline.Example{
				{Text: "Complete in this bash or zsh", Line: "source <(etcd-wrapper completion bash)"},
				{Text: "Complete in this fish", Line: "etcd-wrapper completion fish | source"},
			},
			Statuses: []commandline.Status{done, usage},
		},
		"man": {
			Examples: []commandline.Example{
				{Text: "Read the manual page", Line: "etcd-wrapper man | man -l -"},
				{Text: "Install it", Line: "etcd-wrapper man > /usr/share/man/man1/etcd-wrapper.1"},
			},
			Statuses: []commandline.Status{done, usage},
		},
		"verify-data": {
			Examples: []commandline.Example{
				{Text: "Validate everything", Line: "verify-data --data-dir=/var/lib/etcd/new.etcd"},
				{Text: "Validate what is quick to check", Line: "verify-data --mode=sanity --data-dir=/var/lib/etcd/new.etcd"},
			},
			Statuses: []commandline.Status{statusOf(exitcode.Clean, "the data is valid, or there is none"), statusOf(exitcode.ToolFailed, "the data is not valid"), usage},
		},
	}
}

const storeText = "Without --backup-store, use the store of the wrapper that runs on this host. Flags have environment variables, as those of start-etcd."

var (
	done        = statusOf(exitcode.Clean, "done")
	failure     = statusOf(exitcode.ToolFailed, "failed for a reason outside the store, such as a full disk here")
	usage       = statusOf(exitcode.Usage, exitcode.Usage.String())
	notKept     = statusOf(exitcode.NotKept, "what you asked for is not kept")
	interrupted = statusOf(exitcode.CutShort, "interrupted")
)

func statusOf(code exitcode.Code, meaning string) commandline.Status {
	return commandline.Status{Code: int(code), Meaning: meaning}
}

// backupStatuses returns the exit statuses of a command that uses a store; more are those of some commands only.
func backupStatuses(more ...commandline.Status) []commandline.Status {
	return slices.Concat([]commandline.Status{
		done, failure, usage, statusOf(exitcode.StoreAway, "the store cannot be used, or no wrapper answers"),
		statusOf(exitcode.BackupFailed, "backups are damaged, or cannot be trusted"),
	}, more, []commandline.Status{interrupted})
}

func startStatuses() (all []commandline.Status) {
	for _, code := range exitcode.Codes() {
		all = append(all, statusOf(code, code.String()))
	}
	return append(all, commandline.Status{Code: 128, Meaning: "and more: forced by a second signal, whose number is added"})
}
