// Package backups is what the commands `etcd-wrapper backup …` do. The command line is read elsewhere, and gets exit statuses for
// the errors.
package backups
