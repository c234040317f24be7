/* Eight processes end at the same moment, time and again: how many lines of the report are empty, and how many there are. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 150, PROCESSES = 8 };

int main(int count, char **args) {
    const char *report = count > 1 ? args[1] : "";
    long empty = 0, lines = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int gate[2];
        char byte;
        if (unlink(report) != 0 && round > 0)
            return 2;
        if (pipe(gate) != 0)
            return 3;
        for (int i = 0; i < PROCESSES; i++) {
            if (fork() == 0) {
                close(gate[1]);
                exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
            }
        }
        close(gate[0]);
        close(gate[1]);
        while (wait(NULL) > 0) {
        }
        FILE *file = fopen(report, "r");
        int last = '\n';
        if (file == NULL)
            return 4;
        for (int c; (c = getc(file)) != EOF; last = c) {
            lines += c == '\n' && last != '\n';
            empty += c == '\n' && last == '\n';
        }
        fclose(file);
    }
    printf("%ld empty of %ld\n", empty, lines);
    return empty != 0 || lines != (long)ROUNDS * PROCESSES;
}
