#!/usr/bin/env node
// The program `fleet`: runs the processes of the fleet. What it does stands in main.ts.

import { launch } from './launch.js'

launch('fleet')
